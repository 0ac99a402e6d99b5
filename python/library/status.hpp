#pragma once

#include "layouts/basics/require.hpp"
#include "python/library/ringlab_cpu.h"

#include <exception>
#include <new>
#include <string>

namespace ringlab::python {

/// Why the last call of this thread failed.
inline thread_local std::string last_message;

/// The boundary to C: turns an exception into a status and a message.
template <class Body>
ringlab_status guarded(ringlab_status otherwise, Body body) {
    try {
        body();
        last_message.clear();
        return RINGLAB_OK;
    } catch (const std::bad_alloc&) {
        last_message = "no memory is left";
    } catch (const std::exception& error) {
        last_message = error.what();
    } catch (...) {
        last_message = "an exception that says nothing";
    }
    return otherwise;
}

/// guarded() for a pass. One that fails half way leaves messages and peers waiting: `broken` then says why its ring can
/// be used no more.
template <class Body>
ringlab_status guarded_pass(std::string& broken, Body body) {
    const auto status = guarded(RINGLAB_BROKEN, [&] {
        require(broken.empty(), "this ring ended in an earlier call: {}", broken);
        body();
    });
    if (status != RINGLAB_OK && broken.empty()) broken = last_message;
    return status;
}

}  // namespace ringlab::python
