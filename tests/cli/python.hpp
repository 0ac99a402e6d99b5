#pragma once

#include <boost/test/unit_test.hpp>

#include <cstdlib>
#include <string>

namespace ringlab::cli::test {

/// The first Python that has these modules ("numpy, h5py"), the one that the environment's RINGLAB_PYTHON names before
/// those of the system; empty if none has.
inline std::string python_with(const std::string& modules) {
    const char* given = std::getenv("RINGLAB_PYTHON");
    for (const std::string candidate : {given ? given : "python3", "python3", "/usr/bin/python3"})
        if (std::system((candidate + " -c 'import " + modules + "' >/dev/null 2>&1").c_str()) == 0) return candidate;
    return {};
}

/// For preconditions: what python_with() found, or why a test shows as skipped.
inline boost::test_tools::assertion_result found_with(const std::string& python, const std::string& modules) {
    boost::test_tools::assertion_result result(!python.empty());
    result.message() << "no Python with " << modules << " is there; RINGLAB_PYTHON may name one";
    return result;
}

}  // namespace ringlab::cli::test
