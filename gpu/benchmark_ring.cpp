// Times a ring's passes on GPUs: benchmark_ring [NAME=VALUE ...]
//
//   benchmark_ring tokens=8192 ranks=4 layout=zigzag transport=copy
//   mpirun -n 4 benchmark_ring ranks=4 transport=nccl mpi=1

#include "gpu/executor.hpp"
#include "processes/session.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <random>

namespace {

using namespace ringlab;
using layouts::Pass;

/// Settings by name, with their defaults; a name that is not among them is an error.
class Settings {
public:
    Settings(int argc, char** argv) {
        for (int i = 1; i < argc; ++i) {
            const std::string argument = argv[i];
            const auto equals = argument.find('=');
            const auto name = argument.substr(0, equals);
            require(equals != std::string::npos && values_.contains(name), "'{}' is no setting; known: {}", argument,
                    known());
            values_[name] = argument.substr(equals + 1);
        }
    }

    const std::string& text(const std::string& name) const { return values_.at(name); }
    int number(const std::string& name) const {
        const auto& value = text(name);
        int result = 0;
        const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
        require(error == std::errc() && end == value.data() + value.size() && result >= 0,
                "{}={} is not a whole number", name, value);
        return result;
    }
    bool flag(const std::string& name) const { return number(name) != 0; }

    /// CUDA devices, one digit each: 0123.
    std::vector<int> devices() const {
        std::vector<int> all;
        for (const char digit : text("devices")) {
            require('0' <= digit && digit <= '9', "devices={} are not digits", text("devices"));
            all.push_back(digit - '0');
        }
        return all;
    }

private:
    std::string known() const {
        std::string text;
        for (const auto& [name, value] : values_) text += name + "=" + value + " ";
        return text;
    }

    std::map<std::string, std::string> values_{
        {"tokens", "8192"},     {"ranks", "1"},
        {"replicas", "1"},      {"query-heads", "32"},
        {"kv-heads", "8"},      {"head-dim", "128"},
        {"value-dim", "128"},   {"batch", "1"},
        {"mask", "causal"},     {"layout", "zigzag"},
        {"schedule", "ring"},   {"partials", "0"},
        {"gradients", "fp32"},  {"transport", "loopback"},
        {"backward", "1"},      {"deterministic", "0"},
        {"warm-up", "5"},       {"repeats", "15"},
        {"timeline", "1"},      {"mpi", "0"},
        {"round-results", "1"}, {"timeout", "60"},
        {"devices", ""},        {"kernels", "auto"},
    };
};

/// Rows are drawn from a table of normal values at random places: random enough to time, and quick to make.
gpu::HostTensor<std::uint16_t> random_tensor(std::int64_t batch, std::int64_t tokens, std::int64_t heads,
                                             std::int64_t dim, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    static const auto table = [] {
        std::mt19937_64 generator(1);
        std::normal_distribution<float> normal;
        auto numbers = gpu::make_tensor<float>(1, 1, 1, 1 << 20);
        for (auto& x : numbers.values) x = normal(generator);
        return gpu::to_bits(numbers, layouts::DType::bf16);
    }();
    auto tensor = gpu::make_tensor<std::uint16_t>(batch, tokens, heads, dim);
    std::uniform_int_distribution<std::size_t> place(0, table.values.size() - static_cast<std::size_t>(dim));
    for (auto row = tensor.values.begin(); row != tensor.values.end(); row += dim)
        std::copy_n(table.values.begin() + static_cast<std::ptrdiff_t>(place(random)), dim, row);
    return tensor;
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

double mean_of_medians(const std::vector<std::vector<layouts::RankTotals>>& repeats,
                       layouts::Picoseconds layouts::RankTotals::*field, bool largest) {
    double sum = 0, most = 0;
    for (std::size_t rank = 0; rank < repeats.front().size(); ++rank) {
        std::vector<double> values;
        for (const auto& repeat : repeats) values.push_back(layouts::to_seconds(repeat[rank].*field));
        sum += median(values);
        most = std::max(most, median(values));
    }
    return largest ? most : sum / static_cast<double>(repeats.front().size());
}

/// One line of the table: times in ms; TFLOP/s count visible pairs.
void print_pass(const layouts::Schedule& schedule, const gpu::PassRun& run) {
    const auto& p = schedule.problem();
    double cells = 0;
    for (int rank = 0; rank < schedule.ranks(); ++rank)
        for (int owner = 0; owner < schedule.ranks(); ++owner)
            cells += static_cast<double>(schedule.cells(rank, owner));
    const bool forward = schedule.options().pass == Pass::forward;
    const double flop = cells * static_cast<double>(p.query_heads * p.batch) *
                        (forward ? p.forward_flop_per_cell() : p.backward_flop_per_cell());
    const auto seconds = run.seconds();
    const double typical = median(seconds);
    std::vector<std::vector<layouts::RankTotals>> totals;
    for (const auto& timeline : run.timelines) totals.push_back(layouts::totals(timeline));
    fmt::print("{:9} {:9.3f} {:9.3f} {:9.3f} {:8.1f} {:10.3f} {:10.3f} {:9.3f} {:9.3f}\n",
               to_string(schedule.options().pass), typical * 1e3,
               *std::min_element(seconds.begin(), seconds.end()) * 1e3,
               *std::max_element(seconds.begin(), seconds.end()) * 1e3, flop / schedule.ranks() / typical * 1e-12,
               mean_of_medians(totals, &layouts::RankTotals::compute, false) * 1e3,
               mean_of_medians(totals, &layouts::RankTotals::compute, true) * 1e3,
               mean_of_medians(totals, &layouts::RankTotals::communication, true) * 1e3,
               mean_of_medians(totals, &layouts::RankTotals::exposed, true) * 1e3);
}

gpu::TransportKind transport_of(const std::string& name) {
    for (const auto kind : {gpu::TransportKind::loopback, gpu::TransportKind::copy, gpu::TransportKind::nccl})
        if (name == to_string(kind)) return kind;
    fail("transport '{}'; known: loopback, copy, nccl", name);
}

int run_benchmark(const Settings& settings, gpu::Team* mpi_team) {
    // 1. What to compute.
    layouts::Problem problem;
    problem.batch = settings.number("batch");
    problem.tokens = std::int64_t{settings.number("tokens")} * settings.number("ranks");
    problem.query_heads = settings.number("query-heads");
    problem.kv_heads = settings.number("kv-heads");
    problem.head_dim = settings.number("head-dim");
    problem.value_dim = settings.number("value-dim");
    const auto mask = layouts::make_mask(settings.text("mask"), problem.tokens);
    const auto layout = layouts::make_layout(settings.text("layout"), problem.tokens, settings.number("ranks"));
    layouts::ScheduleOptions how;
    how.algorithm = settings.text("schedule");
    how.accumulation = settings.flag("partials") ? layouts::Accumulation::partials : layouts::Accumulation::carry;
    how.gradient_dtype = settings.text("gradients") == "bf16" ? layouts::DType::bf16 : layouts::DType::fp32;
    const auto forward = make_schedule(problem, mask, layout, how);
    how.pass = Pass::backward;
    const auto backward = settings.flag("backward") ? make_schedule(problem, mask, layout, how) : nullptr;

    // 2. Where, and how often.
    gpu::GpuOptions options;
    options.transport = transport_of(settings.text("transport"));
    options.devices = settings.devices();
    options.group.ring = settings.number("ranks");
    options.group.replicas = settings.number("replicas");
    options.deterministic = settings.flag("deterministic");
    options.kernels = gpu::kernel_family(settings.text("kernels"));
    options.round_results = settings.flag("round-results");
    options.timelines = settings.flag("timeline") ? gpu::Timelines::all : gpu::Timelines::none;
    options.warm_up = settings.number("warm-up");
    options.repeats = settings.number("repeats");
    options.timeout = std::chrono::seconds(settings.number("timeout"));

    // 3. Run.
    std::vector<gpu::HostInputs> inputs;
    for (int replica = 0; replica < options.group.replicas; ++replica) {
        const auto seed = static_cast<std::uint64_t>(10 * replica);
        inputs.push_back(
            {random_tensor(problem.batch, problem.tokens, problem.query_heads, problem.head_dim, seed + 2),
             random_tensor(problem.batch, problem.tokens, problem.kv_heads, problem.head_dim, seed + 3),
             random_tensor(problem.batch, problem.tokens, problem.kv_heads, problem.value_dim, seed + 4),
             random_tensor(problem.batch, problem.tokens, problem.query_heads, problem.value_dim, seed + 5)});
    }
    const auto own_team = mpi_team ? nullptr : gpu::make_thread_team(gpu::team_size(options));
    auto& team = mpi_team ? *mpi_team : *own_team;
    const auto runs = gpu::run(team, *forward, backward.get(), inputs, options);
    if (runs.empty()) return EXIT_SUCCESS;

    // 4. Print.
    const auto& run = runs.front();
    fmt::print("{} ranks x {} tokens, {}:{} heads, dims {}/{}, mask {}, layout {}, schedule {}, transport {}{}\n",
               forward->ranks(), settings.number("tokens"), problem.query_heads, problem.kv_heads, problem.head_dim,
               problem.value_dim, mask.name(), layout.name(), how.algorithm, to_string(options.transport),
               mpi_team ? ", one process per rank" : "");
    fmt::print("{:9} {:>9} {:>9} {:>9} {:>8} {:>10} {:>10} {:>9} {:>9}\n", "pass", "median ms", "least", "most",
               "TFLOP/s", "comp. mean", "comp. most", "transfer", "exposed");
    print_pass(*forward, run.forward);
    if (backward) print_pass(*backward, run.backward);
    double mhz = 0, watts = 0, during = 0;
    for (const auto& sample : run.clocks) {
        if (sample.moment != gpu::ClockSample::Moment::during) continue;
        mhz += sample.sm_mhz;
        watts += sample.watts;
        ++during;
    }
    const auto& memory = run.memory.front();
    fmt::print(
        "on {}; memory per rank {:.1f} MB (inputs {:.1f}, results {:.1f}, slots {:.1f}, work {:.1f}); clock {:.0f} "
        "MHz, {:.0f} W; times of ranks agree within {:.1f} us\n",
        run.devices.front(), static_cast<double>(memory.total()) * 1e-6, static_cast<double>(memory.inputs) * 1e-6,
        static_cast<double>(memory.results) * 1e-6, static_cast<double>(memory.slots) * 1e-6,
        static_cast<double>(memory.work) * 1e-6, during > 0 ? mhz / during : 0, during > 0 ? watts / during : 0,
        run.clock_uncertainty * 2e6);
    return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
    // Loading a kernel at its first launch can wait for all work of its device, which may be waiting for another GPU.
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    std::optional<processes::Session> session;
    try {
        const Settings settings(argc, argv);
        if (settings.flag("mpi")) session.emplace(argc, argv, std::chrono::seconds(settings.number("timeout")));
        const auto team = session ? gpu::make_mpi_team() : nullptr;
        return run_benchmark(settings, team.get());
    } catch (const std::exception& error) {
        if (session) session->end(error.what());
        std::fprintf(stderr, "benchmark_ring: %s\n", error.what());
        return EXIT_FAILURE;
    }
}
