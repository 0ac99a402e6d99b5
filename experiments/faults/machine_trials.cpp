#include "experiments/faults/machine_trials.hpp"

#include "experiments/execution/machine_fault.hpp"
#include "experiments/faults/launched.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <sstream>

#include <unistd.h>

namespace ringlab::experiments {
namespace {

namespace fs = std::filesystem;

constexpr const char* program = "gradient_equivalence";
constexpr int grace = 8;  // seconds that a launcher may take to end what it has started
constexpr int longest = 240;

/// Goes with all that is in it.
class TrialFolder {
public:
    TrialFolder() : path_(fs::temp_directory_path() / fmt::format("ringlab-faults-{}", getpid())) {
        fs::create_directories(path_);
    }
    ~TrialFolder() {
        std::error_code ignored;
        fs::remove_all(path_, ignored);
    }
    TrialFolder(const TrialFolder&) = delete;
    TrialFolder& operator=(const TrialFolder&) = delete;

    std::string record() const { return (path_ / "r.h5").string(); }

private:
    fs::path path_;
};

std::vector<std::string> command(const Config& config, int ranks, const MachineTrial& trial,
                                 const std::string& record) {
    std::vector<std::string> words;
    std::istringstream launcher(config.launcher);
    for (std::string word; launcher >> word;) words.push_back(word);
    const auto tokens = fmt::format("{}", config.sweep.tokens.front());
    const auto count = fmt::format("{}", ranks);
    words.insert(words.end(), {"-np",
                               count,
                               neighbouring_program(program),
                               "--mpi",
                               "--backend",
                               config.execution.backend,
                               "--arithmetic",
                               config.problem.arithmetic,
                               "--input",
                               config.sweep.inputs.front(),
                               "--ranks",
                               count,
                               "--tokens",
                               tokens,
                               "--layouts",
                               "zigzag",
                               "--masks",
                               "causal",
                               "--schedules",
                               "ring",
                               "--timeout",
                               fmt::format("{}", config.execution.timeout_seconds),
                               "--overwrite",
                               "-o",
                               record});
    if (!trial.fault.empty()) words.insert(words.end(), {"--fault", trial.fault});
    words.insert(words.end(), trial.words.begin(), trial.words.end());
    return words;
}

/// The program's line of error, or its note of a slow rank.
std::string said_in(const std::vector<std::string>& lines) {
    for (const auto& line : lines)
        if (line.find(fmt::format("{}: ", program)) != std::string::npos ||
            line.find(" is slow: ") != std::string::npos)
            return line;
    return {};
}

bool names(const std::string& line, int rank) {
    const auto text = fmt::format("rank {}", rank);
    for (auto at = line.find(text); at != std::string::npos; at = line.find(text, at + 1))
        if (const auto end = at + text.size();
            end == line.size() || !std::isdigit(static_cast<unsigned char>(line[end])))
            return true;
    return false;
}

/// Launchers frame what they say in dashes.
std::string first_words(const std::vector<std::string>& lines) {
    const auto line = std::ranges::find_if(lines, [](const auto& one) {
        return std::ranges::any_of(one, [](unsigned char c) { return std::isalpha(c); });
    });
    return line == lines.end() ? "it says nothing" : *line;
}

}  // namespace

std::vector<MachineTrial> machine_trials(const std::string& backend) {
    std::vector<MachineTrial> trials;
    if (backend == "cpu")
        trials = {{"slow rank", "slow:1", {}, "time for as many pairs"},
                  {"corrupted message", "flip:1", {"--checksums"}, "checksum"},
                  {"corrupted message, no checksums", "flip:1", {}, ""}};
    trials.push_back({"stopped rank", "stop:1", {}, "signs of life"});
    trials.push_back({"dead rank", "kill:1", {}, "signs of life"});
    return trials;
}

MachineOutcome run_machine_trial(const Config& config, int ranks, const MachineTrial& trial) {
    const TrialFolder folder;
    const auto words = command(config, ranks, trial, folder.record());
    const auto launched = launch(words, struck_text, longest);
    if (trial.fault.empty())
        require(launched.status == 0, "--launcher '{}': a run without a fault ends with status {}: {}", config.launcher,
                launched.status, first_words(launched.lines));
    const auto fault = parse_machine_fault(trial.fault, ranks);
    const bool of_process = fault && fault->is_of_process();
    MachineOutcome outcome;
    outcome.seconds = of_process ? launched.seconds_since_mark : launched.seconds;
    outcome.limit = of_process ? config.execution.timeout_seconds + grace : longest;
    outcome.said = said_in(launched.lines);
    const bool goes_on = !fault || fault->kind == MachineFault::Kind::slow;
    outcome.named = fault && !launched.timed_out && (launched.status == 0) == goes_on &&
                    outcome.seconds <= outcome.limit && names(outcome.said, fault->rank);
    return outcome;
}

}  // namespace ringlab::experiments
