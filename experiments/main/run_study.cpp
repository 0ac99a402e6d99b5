#include "experiments/main/run_study.hpp"

#include "experiments/command_line/command_line.hpp"
#include "experiments/execution/backend.hpp"
#include "experiments/main/run_main.hpp"

namespace ringlab::experiments {

int run_study(const Experiment& experiment, Config (*defaults)(), int (*study)(const Config&, int, char**), int argc,
              char** argv) {
    const auto body = [&](int count, char** words) {
        const auto config = parse(experiment, defaults(), count, words);
        return config ? run_in_session(config->execution, config->output.text, count, words,
                                       [&] { return study(*config, count, words); })
                      : 0;
    };
    return run_main(experiment.name, body, argc, argv);
}

}  // namespace ringlab::experiments
