#include "layouts/operation.hpp"

#include "layouts/require.hpp"

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

const char* to_string(Pool pool) {
    switch (pool) {
        case Pool::kv: return "K,V";
        case Pool::dkv: return "dK,dV";
        case Pool::q: return "Q";
        case Pool::state: return "state";
        case Pool::output: return "O";
        case Pool::dout: return "dO";
        case Pool::dq: return "dQ";
        case Pool::latent: return "latent";
        case Pool::dlatent: return "dlatent";
    }
    return "?";
}

int heads_of(const Problem& problem, Pool pool) {
    if (of_rows(pool)) return static_cast<int>(problem.query_heads);
    return pool == Pool::latent || pool == Pool::dlatent ? 1 : static_cast<int>(problem.kv_heads);
}

void Op::run_after(OpIndex index) {
    if (index < 0) return;
    require(after_count < static_cast<int>(after_storage.size()), "an operation has more than {} dependencies",
            after_storage.size());
    after_storage[static_cast<std::size_t>(after_count++)] = index;
}

}  // namespace ringlab::layouts
