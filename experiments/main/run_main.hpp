#pragma once

#include <functional>
#include <string>

namespace ringlab::experiments {

/// Runs `body` and returns its exit status; an Error, or any other exception, becomes one line on stderr that names the
/// experiment, and status 1.
int run_main(const std::string& name, const std::function<int(int, char**)>& body, int argc, char** argv);

}  // namespace ringlab::experiments
