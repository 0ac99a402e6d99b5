#pragma once

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

}  // namespace ringlab::python
