#include "experiments/validation/recorded.hpp"

#include "experiments/options/source.hpp"
#include "experiments/record/record.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace ringlab::experiments {
namespace {

using layouts::Pass;

std::size_t index(std::int64_t number) { return static_cast<std::size_t>(number); }

/// The place of a name in a dimension of names.
std::size_t place_of(const hdf5::File& file, const std::string& dimension, const std::string& name) {
    const auto names = file.dataset(dimension).texts();
    const auto found = std::find(names.begin(), names.end(), name);
    require(found != names.end(), "the record has no {} '{}'", dimension, name);
    return index(found - names.begin());
}

}  // namespace

std::vector<bool> hot_runs(const hdf5::File& record) {
    const auto runs = index(record.dataset("runs/name").shape().front());
    std::vector<bool> hot(runs);
    if (!record.contains("measured/clocks/throttle_reasons")) return hot;
    constexpr std::int64_t software_thermal = 0x20, hardware_thermal = 0x40;  // nvmlClocksEventReasons
    const auto reasons = record.dataset("measured/clocks/throttle_reasons").integers();
    for (std::size_t i = 0; i < reasons.size(); ++i)
        if (reasons[i] > 0 && (reasons[i] & (software_thermal | hardware_thermal)) != 0)
            hot[i / (reasons.size() / runs)] = true;
    return hot;
}

RecordedRings::RecordedRings(const std::string& file, const LeftOut& left_out) : path_(file), file_(open_record(file)) {
    require(
        file_.has("experiment") && (file_.text("experiment") == "validate" || file_.text("experiment") == "throughput"),
        "--measured {}: it is no record of validate or throughput", file);
    require(file_.contains("runs/name") && !file_.dataset("runs/name").texts().empty(),
            "--measured {}: the record has no finished run", file);
    require(file_.contains("spans/pool"),
            "--measured {}: it was recorded before spans said what they move, and cannot be predicted again", file);
    const auto text = [&](const char* column) { return file_.dataset(std::string("runs/") + column).texts(); };
    const auto masks = text("mask"), layouts = text("layout"), algorithms = text("algorithm"), shapes = text("shape"),
               transports = text("transport"), kernels = text("kernels"), kinds = text("kind");
    const auto &ranks = integers("runs/ranks"), &tokens = integers("runs/tokens"), &gpus = integers("runs/gpus");
    const auto hot = left_out.hot ? hot_runs(file_) : std::vector<bool>(masks.size());
    for (std::size_t run = 0; run < masks.size(); ++run) {
        if (kinds[run] != "ring" || hot[run]) continue;
        if (const auto it = left_out.changed.find(algorithms[run]);
            it != left_out.changed.end() && it->second.concerns(tokens[run], ranks[run]))
            continue;
        rows_.push_back(run);
        ThroughputCase one{.shape = shapes[run], .transport = transports[run], .kernels = kernels[run]};
        one.which.mask = masks[run];
        one.which.layout = layouts[run];
        one.which.schedule = algorithms[run];
        one.which.ranks = static_cast<int>(ranks[run]);
        one.which.tokens = tokens[run];
        one.gpus = static_cast<int>(gpus[run]);
        cases_.push_back(std::move(one));
    }
}

void RecordedRings::add_provenance(Provenance& provenance) const {
    provenance.set_file("measured", path_);
    // Where and when it was measured, in the words of the record; which may have been predicted again before.
    const auto theirs = file_.group("provenance/0");
    for (const std::string name : {"commit", "date", "command_line"})
        for (const auto& said : {"measured_" + name, name})
            if (theirs.has(said)) {
                provenance.set("measured_" + name, theirs.text(said));
                break;
            }
}

RingSamples RecordedRings::ring(const Plan& plan, const layouts::RingGroup& group, const std::string& transport,
                                const std::string& kernels) {
    const auto is_it = [&](const ThroughputCase& one) {
        return one.which.mask == plan.mask().name() && one.which.layout == plan.layout().name() &&
               one.which.schedule == plan.forward->options().schedule && one.which.tokens == plan.problem.tokens &&
               one.shape == shape_text(plan.problem) && one.which.ranks == group.ring && one.transport == transport &&
               one.kernels == kernels;
    };
    const auto found = std::find_if(cases_.begin(), cases_.end(), is_it);
    require(found != cases_.end(), "'{}' holds no ring {} {} P={} S={}", path_, plan.mask().name(),
            plan.layout().name(), group.ring, plan.problem.tokens);
    const auto run = rows_[index(found - cases_.begin())];
    const int gpus = found->gpus;
    RingSamples samples;
    samples.kernels = {file_.dataset("runs/kernels_forward").texts()[run],
                       file_.dataset("runs/kernels_backward").texts()[run]};
    samples.forward = samples_of(Pass::forward, run, gpus);
    samples.backward = samples_of(Pass::backward, run, gpus);
    samples.devices.assign(index(gpus), "recorded");
    samples.clock_uncertainty = numbers("runs/clock_uncertainty")[run];
    const auto rows = index(file_.dataset("measured/memory/slots").shape()[1]);
    for (std::size_t rank = 0; rank < index(gpus); ++rank) {
        const auto bytes = [&](const char* name) {
            return integers(fmt::format("measured/memory/{}", name))[run * rows + rank];
        };
        samples.memory.push_back({bytes("inputs"), bytes("results"), bytes("slots"), bytes("work")});
    }
    return samples;
}

std::vector<std::vector<double>> RecordedRings::samples(const std::string& pass, std::size_t run, int ranks) const {
    const auto path = fmt::format("measured/{}/seconds", pass);
    const auto shape = file_.dataset(path).shape();
    const auto count = index(integers(fmt::format("lengths/measured/{}/repeat", pass))[run]);
    const auto repeats = index(shape[1]), columns = index(shape[2]);
    require(count > 0 && count <= repeats && index(ranks) <= columns, "'{}': {} of run {} is damaged", path_, path,
            run);
    std::vector<std::vector<double>> rows;
    for (std::size_t repeat = 0; repeat < count; ++repeat) {
        const auto* row = numbers(path).data() + (run * repeats + repeat) * columns;
        rows.emplace_back(row, row + ranks);
    }
    return rows;
}

PassSamples RecordedRings::samples_of(Pass pass, std::size_t run, int ranks) const {
    const std::string name = to_string(pass);
    return {samples(name, run, ranks),
            {std::vector(1, numbers("runs/issue_seconds_" + name)[run])},  // the median alone is recorded
            // Older records of throughput do not say what pauses there were between passes: none, then.
            file_.contains("runs/period_" + name) ? numbers("runs/period_" + name)[run] : 0,
            timeline_of(pass, run, static_cast<int>(integers("runs/ranks")[run]))};
}

layouts::Timeline RecordedRings::timeline_of(Pass pass, std::size_t run, int ranks) const {
    layouts::Timeline timeline{ranks, {}};
    const auto shape = file_.dataset("spans/count").shape();
    const auto place = (run * index(shape[1]) + place_of(file_, "source", "measured")) * index(shape[2]) +
                       place_of(file_, "pass", to_string(pass));
    const auto first = integers("spans/first")[place], count = integers("spans/count")[place];
    const auto time = [&](const char* column, std::size_t row) {
        return layouts::to_picoseconds(numbers(fmt::format("spans/{}", column))[row]);
    };
    const auto whole = [&](const char* column, std::size_t row) {
        return integers(fmt::format("spans/{}", column))[row];
    };
    for (auto row = index(std::max<std::int64_t>(first, 0)), end = row + index(std::max<std::int64_t>(count, 0));
         row < end; ++row) {
        layouts::Span span;
        span.rank = static_cast<int>(whole("rank", row));
        span.op = static_cast<layouts::OpIndex>(whole("op", row));
        span.step = static_cast<int>(whole("step", row));
        span.kind = static_cast<layouts::OpKind>(whole("kind", row));
        span.lane = static_cast<layouts::Lane>(whole("lane", row));
        span.pool = static_cast<layouts::Pool>(whole("pool", row));
        span.peer = static_cast<int>(whole("peer", row));
        span.block = static_cast<int>(whole("block", row));
        span.pair_count = whole("cells", row);
        span.bytes = whole("bytes", row);
        span.posted = time("posted", row);
        span.begin = time("begin", row);
        span.end = time("end", row);
        span.busy = time("busy", row);
        timeline.spans.push_back(span);
    }
    return timeline;
}

const std::vector<double>& RecordedRings::numbers(const std::string& path) const {
    const auto [entry, is_new] = numbers_.try_emplace(path);
    if (is_new) entry->second = file_.dataset(path).doubles();
    return entry->second;
}

const std::vector<std::int64_t>& RecordedRings::integers(const std::string& path) const {
    const auto [entry, is_new] = integers_.try_emplace(path);
    if (is_new) entry->second = file_.dataset(path).integers();
    return entry->second;
}

}  // namespace ringlab::experiments
