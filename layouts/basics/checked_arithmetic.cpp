#include "layouts/basics/checked_arithmetic.hpp"

#include "layouts/basics/require.hpp"

namespace ringlab::layouts {

void fail_time_too_long() {
    fail(
        "a time exceeds 106 days (2^63 picoseconds), the longest that a timeline can hold; use fewer tokens, "
        "heads, dims, sequences or ranks, or a faster machine");
}

}  // namespace ringlab::layouts
