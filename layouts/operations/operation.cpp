#include "layouts/operations/operation.hpp"

#include "layouts/basics/require.hpp"

namespace ringlab::layouts {

const char* to_string(OpKind kind) {
    switch (kind) {
        case OpKind::attend: return "attend";
        case OpKind::merge: return "merge";
        case OpKind::add: return "add";
        case OpKind::send: return "send";
        case OpKind::receive: return "receive";
        case OpKind::fetch: return "fetch";
        case OpKind::copy: return "copy";
        case OpKind::expand: return "expand";
        case OpKind::compress: return "compress";
    }
    return "?";
}

void Op::run_after(OpIndex index) {
    if (index < 0) return;
    require(after_count < static_cast<int>(after_storage.size()), "an operation has more than {} dependencies",
            after_storage.size());
    after_storage[static_cast<std::size_t>(after_count++)] = index;
}

}  // namespace ringlab::layouts
