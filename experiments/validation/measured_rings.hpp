#pragma once

#include "experiments/benchmark/throughput_case.hpp"
#include "experiments/execution/ring_run.hpp"
#include "experiments/prediction/predictor.hpp"
#include "experiments/record/hdf5.hpp"

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

/// A ring of a record. With it another model or machine file can be scored without the devices.
struct MeasuredRing {
    ThroughputCase timed;
    RingRun run;          ///< both passes alone
    bool is_hot = false;  ///< of hot_runs()
    /// By "PASS_MACHINE": errors of the model of its day, as far as the record keeps them.
    std::map<std::string, double> kept_errors;
};

/// The rings of a record of `validate` or `throughput`, but those left out. Throws Error, one line, if the file is no
/// such record with rings.
std::vector<MeasuredRing> measured_rings(const std::string& file, const LeftOut& left_out = {});

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

/// Calls visit(record, ring, plan, machine) for each ring over a transport that has a machine, of all records that are
/// scored; `with_hot`: for hot ones too. Tells a person how far it is.
void for_each_ring(
    const std::vector<ScoredRecord>& records, bool with_hot,
    const std::function<void(const ScoredRecord&, const MeasuredRing&, const Plan&, const sim::Machine&)>& visit);

}  // namespace ringlab::experiments
