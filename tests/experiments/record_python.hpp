#pragma once

#include "experiments/record/record.hpp"

#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace ringlab::experiments::test {

inline const std::string python = "/usr/bin/python3";

struct PythonResult {
    int status = -1;
    std::string output;
};

/// Runs Python with these arguments (paths of tests hold no blanks or quotes) and takes what it prints.
inline PythonResult run_python(const std::string& arguments) {
    PythonResult result;
    FILE* pipe = popen((python + " " + arguments + " 2>&1").c_str(), "r");
    BOOST_REQUIRE(pipe != nullptr);
    for (int c; (c = std::fgetc(pipe)) != EOF;) result.output += static_cast<char>(c);
    const int status = pclose(pipe);
    result.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return result;
}

/// A precondition: without NumPy and h5py a test shows as skipped.
inline boost::test_tools::assertion_result has_h5py(boost::unit_test::test_unit_id) {
    boost::test_tools::assertion_result result(std::system((python + " -c 'import numpy, h5py' 2>/dev/null").c_str()) ==
                                               0);
    result.message() << python << " with numpy and h5py is not there";
    return result;
}

}  // namespace ringlab::experiments::test
