#include "layouts/operations/operation_stream.hpp"

namespace ringlab::layouts {

const Op* Ops::next() {
    if (!handle_.done()) handle_.resume();
    return handle_.done() ? nullptr : handle_.promise().current;
}

Ops Ops::with_op_storage(Op& op) && {
    handle_.promise().place = &op;
    return std::move(*this);
}

Ops Ops::numbered_from(OpIndex first) && {
    handle_.promise().made = first;
    return std::move(*this);
}

}  // namespace ringlab::layouts
