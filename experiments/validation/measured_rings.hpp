#pragma once

#include "experiments/benchmark/throughput_case.hpp"
#include "experiments/console/progress.hpp"
#include "experiments/execution/ring_run.hpp"
#include "experiments/prediction/predictor.hpp"
#include "experiments/record/hdf5.hpp"
#include "experiments/record/record.hpp"

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// How a schedule has changed since rings of it were measured.
struct ChangedSchedule {
    std::string how;
    std::int64_t below = std::numeric_limits<std::int64_t>::max();  ///< only rings with fewer tokens per rank

    bool concerns(std::int64_t tokens, std::int64_t ranks) const { return tokens / ranks < below; }
};

/// Rings of a record that cannot judge today's model.
struct LeftOut {
    std::map<std::string, ChangedSchedule> changed = {};  ///< schedules, by name
    bool hot = false;                                     ///< those of hot_runs()
};

/// By run of a record of GPUs: whether a GPU's clock was lowered because of its temperature meanwhile. The model knows
/// what power a clock takes, but not how well a GPU is cooled.
std::vector<bool> hot_runs(const hdf5::File& record);

/// Measured rings, read from a record of `validate` or `throughput`. With them another model or machine file can be
/// scored without the devices.
class RecordedRings {
public:
    /// All but those left out. Throws Error, one line, if the file is no such record with rings.
    explicit RecordedRings(const std::string& file, const LeftOut& left_out = {});

    const std::vector<ThroughputCase>& cases() const { return cases_; }

    void add_provenance(Provenance& provenance) const;

    /// What was measured of a case.
    RingRun ring(std::size_t one) const;

    /// Whether it is one of hot_runs().
    bool is_hot(std::size_t one) const { return hot_[rows_[one]]; }

    /// The error of the model of its day on this machine, if the record keeps one; else NaN.
    double kept_error(std::size_t one, layouts::Pass pass, const std::string& machine) const;

private:
    /// Row `run` of a dataset (run, repeat, rank), without missing values at its end.
    std::vector<std::vector<double>> samples(const std::string& pass, std::size_t run, int ranks) const;
    PassRun pass_of(layouts::Pass pass, std::size_t run, int gpus, int ranks) const;
    layouts::Timeline timeline_of(layouts::Pass pass, std::size_t run, int ranks) const;
    const std::vector<double>& numbers(const std::string& path) const;

    std::string path_;
    hdf5::File file_;
    std::vector<ThroughputCase> cases_;
    std::vector<std::size_t> rows_;                               // of the cases in the record
    std::vector<bool> hot_;                                       // by row
    mutable std::map<std::string, std::vector<double>> numbers_;  // whole datasets, as they were read
};

/// What was measured of a pass of a ring, in repeats, and with what rest.
struct MeasuredPass {
    double seconds = 0, spread = 0;  ///< median of the slowest rank, and distance of the quartiles over it
    Repetition repetition;

    /// To predict the pass as it was repeated.
    sim::SimOptions options() const;
};
MeasuredPass measured_pass(const RingRun& ring, layouts::Pass pass);

/// A record among the results that come with Ringlab that holds measured rings.
struct ScoredRecord {
    std::string name;     ///< without folder and ending
    std::string path;     ///< of the file
    std::string why_not;  ///< the reason why its rings are not scored; empty: they are
    /// By transport of its rings: the machine file, by name, that was calibrated on the machine they were measured on.
    /// Empty where they are not scored.
    std::map<std::string, std::string> machines;
    LeftOut left_out = {};      ///< rings that are not scored, each for a reason of its own
    std::size_t hot_rings = 0;  ///< how many of those are hot
};

/// The machines of a record's rings, by transport.
std::map<std::string, sim::Machine> load_machines(const ScoredRecord& record);

/// All of them, by name. Every record of validate and throughput is looked into; results/not_scored.toml lists those
/// that are not scored, or whose rings of a schedule are not, or its short ones, with the reason. Rings during which a
/// GPU was slowed down because of its temperature are predicted, but in no table or margin. A record's name tells its
/// machine: KIND_MACHINE_MORE is scored on MACHINE_calibrated, its rings over NCCL on MACHINE_calibrated_nccl.
///
/// Throws Error if the list names what is not there, or if there is no such machine file.
std::vector<ScoredRecord> scored_records();

/// Name of the run of one of the record's rings in a record of the scores of all.
std::string scored_name(const ScoredRecord& record, const ThroughputCase& ring);

/// Columns of a record of scores that say which ring of which record a run is about.
void describe_scored_ring(RunWriter& run, const std::string& record, const ThroughputCase& ring);

/// A ring of a record, to be predicted again. Its plan may be taken.
struct MeasuredRing {
    const RecordedRings& rings;
    std::size_t index;
    Plan plan;
    RingRun run;

    const ThroughputCase& which() const { return rings.cases()[index]; }
};

/// Calls `visit` for each ring of the record over a transport that has a machine, but those left out.
void for_each_ring(const ScoredRecord& record, const LeftOut& left_out, Progress& progress,
                   const std::function<void(MeasuredRing&)>& visit);

}  // namespace ringlab::experiments
