// SPDX-License-Identifier: Apache-2.0
// What the command says of a command line that it does not understand: the word, what was probably
// meant, and whose help to read.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace tfcc::tools {

/// The word of `known` that differs from `word` in few letters (a case, one left out, two
/// exchanged), or empty.
std::string nearest(const std::string& word, const std::vector<std::string>& known);

/// "tfcc compile has no option '--max-batsh' (did you mean --max-batch?); tfcc compile --help tells
/// more"
std::string wrong_usage(const CLI::App& app, int argc, char** argv, const CLI::ParseError& e);

/// "tfcc 0.1.0" and, a line each, what it was built from, its compilers and the targets it knows.
std::string version_text();

}  // namespace tfcc::tools
