#pragma once

#include <exception>
#include <string>

namespace ringlab::tests {

/// The message of the exception that `action` throws; "(no error)" if it throws none.
template <class Action>
std::string error_of(Action action) {
    try {
        action();
    } catch (const std::exception& error) {
        return error.what();
    }
    return "(no error)";
}

}  // namespace ringlab::tests
