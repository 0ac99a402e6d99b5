#pragma once

#include "experiments/benchmark/throughput_case.hpp"
#include "experiments/execution/bench.hpp"
#include "experiments/record/hdf5.hpp"

#include <cstdint>
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
class RecordedRings : public Bench {
public:
    /// All but those left out. Throws Error, one line, if the file is no such record with rings.
    explicit RecordedRings(const std::string& file, const LeftOut& left_out = {});

    const std::vector<ThroughputCase>& cases() const { return cases_; }

    /// Row of a case in the record's table of runs.
    std::size_t row(std::size_t one) const { return rows_[one]; }

    bool is_root() const override { return true; }
    bool agree(bool root_says) override { return root_says; }
    void add_provenance(Provenance& provenance) const override;

    /// The measured passes of a ring. Throws Error if the record has no such ring.
    RingSamples ring(const Plan& plan, const layouts::RingGroup& group, const std::string& transport,
                     const std::string& kernels) override;

private:
    /// Row `run` of a dataset (run, repeat, rank), without missing values at its end.
    std::vector<std::vector<double>> samples(const std::string& pass, std::size_t run, int ranks) const;
    PassSamples samples_of(layouts::Pass pass, std::size_t run, int ranks) const;
    layouts::Timeline timeline_of(layouts::Pass pass, std::size_t run, int ranks) const;
    const std::vector<double>& numbers(const std::string& path) const;
    const std::vector<std::int64_t>& integers(const std::string& path) const;

    std::string path_;
    hdf5::File file_;
    std::vector<ThroughputCase> cases_;
    std::vector<std::size_t> rows_;                               // of the cases in the record
    mutable std::map<std::string, std::vector<double>> numbers_;  // whole datasets, as they were read
    mutable std::map<std::string, std::vector<std::int64_t>> integers_;
};

}  // namespace ringlab::experiments
