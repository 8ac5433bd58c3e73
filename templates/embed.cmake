# Writes OUT: the table that codegen/templates.h declares, with the text of FILES (relative to ROOT).
# Bytes, not string literals: compilers limit the length of those.
set(code "#include \"codegen/templates.h\"\n\nnamespace tfcc::codegen {\nnamespace {\n")
set(table "")
string(REPEAT "." 80 sixteen)  # characters of sixteen bytes
set(number 0)
foreach(file IN LISTS FILES)
  file(READ ${ROOT}/${file} text HEX)
  string(LENGTH "${text}" length)
  math(EXPR bytes "${length} / 2")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," text "${text}")
  string(REGEX REPLACE "(${sixteen})" "\\1\n" text "${text}")
  string(APPEND code "const unsigned char k${number}[] = {\n${text}0};\n")
  string(APPEND table "    {\"${file}\", {reinterpret_cast<const char*>(k${number}), ${bytes}}},\n")
  math(EXPR number "${number} + 1")
endforeach()
string(APPEND code "const TemplateFile kFiles[] = {\n${table}};\n}  // namespace\n\n")
string(APPEND code "std::span<const TemplateFile> template_files() { return kFiles; }\n\n}  // namespace tfcc::codegen\n")
file(WRITE ${OUT} "${code}")
