// SPDX-License-Identifier: Apache-2.0
// What the pages of `inspect --html` and `bench --html` share: escaping, numbers, and a frame
// without anything from a network.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tfcc::tools::html {

/// Text that means itself between tags and in quoted attributes. Control characters and what is no
/// UTF-8 become U+FFFD.
std::string escaped(std::string_view text);
/// At most about `limit` characters, the middle left out; not escaped yet.
std::string shortened(std::string_view text, size_t limit);
/// "1.2 MB", "312 bytes"; "-" for what does not fit 64 bits.
std::string bytes(std::optional<int64_t> n);
/// "1.2 G", for FLOP and elements.
std::string count(std::optional<int64_t> n);
/// `<code>` around escaped text, which may be broken between the parts of a name and between dims,
/// and nowhere else.
std::string code(std::string_view text);
/// C++ or CUDA source, escaped, with spans around comments, words, numbers and strings.
std::string highlighted(std::string_view source);

/// A whole document. `script` is ours: it holds no data of the model.
std::string page(const std::string& title, const std::string& body, std::string_view script = {});
/// The script of the inspection page.
std::string_view inspect_script();

}  // namespace tfcc::tools::html
