// Texts as HTML and SVG hold them.
#pragma once

#include <string>
#include <string_view>

namespace mw {

// For an element or a quoted attribute; control characters, of which XML knows no other, are left
// out but for line breaks and tabs.
std::string escaped(std::string_view text);

}  // namespace mw
