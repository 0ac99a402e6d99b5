#pragma once

#include "experiments/case.hpp"
#include "experiments/config.hpp"
#include "experiments/provenance.hpp"
#include "experiments/record.hpp"
#include "sim/machine.hpp"
#include "sim/simulate.hpp"

#include <string>
#include <vector>

namespace ringlab::experiments {

/// The machines that the configuration names, and what is predicted on them.
class Predictor {
public:
    explicit Predictor(const Config& config);

    /// Names of the machine files without folder and ending; what prediction_group() takes.
    const std::vector<std::string>& machines() const { return names_; }

    /// Paths and digests of the machine files.
    void add_provenance(Provenance& provenance) const;

    /// Predicts both passes of the plan on every machine and writes them to the run, in prediction_group()s. Throws
    /// Error if the ranks do not fit on a machine.
    void predict(RunWriter& run, const std::string& run_name, const Plan& plan);

    /// A measured timeline for the trace, to stand beside the predicted ones.
    void keep_measured(const std::string& run_name, layouts::Pass pass, const layouts::Timeline& timeline);

    /// Writes the trace that --trace asks for, if any.
    void write_trace() const;

private:
    struct Kept {
        std::string name;
        layouts::Timeline timeline;
        std::vector<layouts::Interval> host_issue;
    };

    void predict(RunWriter& run, const std::string& run_name, const layouts::Schedule& schedule, std::size_t machine);
    bool traces(const std::string& run_name);

    const Config& config_;
    sim::SimOptions options_;
    std::vector<std::string> files_, names_;
    std::vector<sim::Machine> machines_;
    std::vector<std::string> traced_runs_;
    std::vector<Kept> kept_;
};

/// "predicted/MACHINE/PASS": where a run holds what predict() gave.
std::string prediction_group(const std::string& machine, layouts::Pass pass);

}  // namespace ringlab::experiments
