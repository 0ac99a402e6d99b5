#include "experiments/command_line/run_program.hpp"

#include "experiments/command_line/command_line.hpp"
#include "experiments/console/interrupt.hpp"
#include "experiments/console/message.hpp"
#include "experiments/execution/backend.hpp"
#include "experiments/files/files_read.hpp"
#include "processes/watching/first_error.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>

namespace ringlab::experiments {

int run_program(const Experiment& experiment, const Config& defaults, const Body& body, int argc, char** argv) {
    end_on_signals();
    // NCCL's monitoring service (RAS): its thread counts communicators, and ends the process by an assertion if its
    // count is wrong. For programs alone, not in a process of somebody else who loads a library.
    setenv("NCCL_RAS_ENABLE", "0", 0);
    const std::string not_printed = "cannot write to standard output; what is printed is not complete";
    try {
        const FilesRead account;
        auto config = parse(experiment, defaults, argc, argv);
        const int status = config ? body(*config, argc, argv) : 0;
        // A full disk or a closed reader shows at the latest when the last of it is written.
        if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
        fmt::print(stderr, "{}: {}\n", experiment.name, not_printed);
    } catch (const std::bad_alloc&) {
        processes::say_first_error(experiment.name, "out of memory; fewer tokens, heads or ranks would need less");
    } catch (const std::exception& error) {
        processes::say_first_error(experiment.name, std::ferror(stdout) ? not_printed : shortened(error.what()));
    }
    return 1;
}

int run_program_in_session(const Experiment& experiment, const Config& defaults, const Body& body, int argc,
                           char** argv) {
    const auto in_session = [&](Config& config, int count, char** words) {
        return run_in_session(config.execution, config.output.text, count, words,
                              [&] { return body(config, count, words); });
    };
    return run_program(experiment, defaults, in_session, argc, argv);
}

}  // namespace ringlab::experiments
