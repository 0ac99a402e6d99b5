// A machine that is described by its five required keys, and the rules by which the others are derived.

#include "layouts/basics/require.hpp"
#include "scenario.hpp"
#include "sim/machine/machine.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <set>
#include <string>
#include <vector>

using namespace ringlab;
using namespace ringlab::sim;

namespace {

namespace data = boost::unit_test::data;
const std::filesystem::path source_dir = RINGLAB_SOURCE_DIR;
constexpr double infinite = std::numeric_limits<double>::infinity();

struct Given {
    std::string key;
    double value;
};

const std::vector<Given> one_host{{"topology.hosts", 1},
                                  {"topology.gpus_per_host", 4},
                                  {"attention.forward.teraflops", 300},
                                  {"inside_host.link_gigabytes_per_second", 200},
                                  {"device_memory.gigabytes", 96}};

std::string text_of_keys(const std::vector<Given>& keys) {
    std::string text;
    for (const auto& [key, value] : keys) text += fmt::format("{} = {{ value = {}, source = \"mine\" }}\n", key, value);
    return text;
}

std::vector<Given> with(std::vector<Given> keys, const Given& more) {
    std::erase_if(keys, [&](const Given& one) { return one.key == more.key; });
    keys.push_back(more);
    return keys;
}

Machine machine_of(const std::vector<Given>& keys) { return parse_machine(text_of_keys(keys), "mine.toml"); }

double figure_of(const Machine& machine, const std::string& key) {
    const auto found = std::ranges::find(machine.figures, key, &Figure::name);
    BOOST_TEST_REQUIRE((found != machine.figures.end()), key);
    return found->value;
}

bool is_derived(const Figure& figure) { return figure.source.starts_with("derived: "); }

std::vector<std::string> committed_machines() {
    std::vector<std::string> names;
    for (const auto& file : std::filesystem::directory_iterator(source_dir / "experiments" / "machines"))
        names.push_back(file.path().stem().string());
    std::ranges::sort(names);
    return names;
}

/// Seconds of a small ring.
double seconds_of_ring(const Machine& machine, int ranks, layouts::Pass pass) {
    const test::Scenario scenario{.ranks = ranks, .tokens_per_rank = 512, .pass = pass};
    return layouts::to_seconds(simulate(*scenario.schedule(), machine, {}).makespan);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(derived_keys)

BOOST_AUTO_TEST_CASE(five_keys_are_a_machine_of_one_host) {
    const auto machine = machine_of(one_host);
    BOOST_TEST(machine.name == "mine");
    BOOST_TEST(machine.gpus() == 4);
    BOOST_TEST(machine.nics_per_host == 4);
    BOOST_TEST(machine.forward.flops == 300e12);
    BOOST_TEST(machine.inside_host.link_bytes_per_second == 200e9);
    BOOST_TEST(machine.device_memory_bytes == 96e9);
    BOOST_TEST(!machine.inside_host.uses_kernels());
    BOOST_TEST(machine.notes.empty());
    BOOST_TEST(std::ranges::count_if(machine.figures, is_derived) + 5 ==
               static_cast<std::ptrdiff_t>(machine.figures.size()));
    BOOST_TEST(machine.figures.size() > 40u);
}

BOOST_AUTO_TEST_CASE(every_derived_figure_is_what_its_rule_says) {
    auto keys = with(one_host, {"topology.hosts", 2});
    keys.push_back({"between_hosts.link_gigabytes_per_second", 25});
    keys.push_back({"gpu.multiprocessors", 100});
    const auto machine = machine_of(keys);
    const auto h200 = test::shipped_machine("2xh200_calibrated");
    const auto cluster = test::shipped_machine("h200_cluster");
    const auto of_h200 = [&](const std::string& key) { return figure_of(h200, key); };
    std::set<std::string> checked;
    const auto expect = [&](const std::string& key, double value) {
        const auto found = figure_of(machine, key);
        BOOST_TEST((found == value || std::abs(found / value - 1) < 1e-12),
                   key << " is " << found << ", not " << value);
        checked.insert(key);
    };
    expect("topology.nics_per_host", 4);
    const double memory = of_h200("gpu.memory_gigabytes_per_second");
    expect("gpu.memory_gigabytes_per_second", memory * 96 / of_h200("device_memory.gigabytes"));
    expect("gpu.attention_memory_gigabytes_per_second", of_h200("gpu.attention_memory_gigabytes_per_second"));
    expect("attention.backward.teraflops", 0.85 * 300);
    for (const std::string pass : {"attention.forward.", "attention.backward."}) {
        for (const auto* key : {"head_dim", "value_dim", "launch_us", "begin_us"})
            expect(pass + key, of_h200(pass + key));
        expect(pass + "begin_memory_ratio", 0);
        expect(pass + "power_teraflops", infinite);
        expect(pass + "tile_rows", 128);
        expect(pass + "tile_keys", 128);
        // A work tile over 256 tiles of 128 x 128 runs at the rate of one of 100 SMs. H200's backward tiles have 64
        // rows.
        const bool forward = pass == "attention.forward.";
        const auto rows = forward ? 1 : 2;
        const auto us = of_h200(pass + "work_tile_us") + 256 * rows * of_h200(pass + "full_tile_us");
        const auto megaflop_us = (forward ? 300 : 0.85 * 300) / 100.0;
        const auto scale = 256 * (forward ? 4 : 10) * std::pow(128, 3) / 1e6 / megaflop_us / us;
        for (const auto* key : {"work_tile_us", "resume_us"}) expect(pass + key, scale * of_h200(pass + key));
        for (const auto* key : {"full_tile_us", "partial_tile_us"})
            expect(pass + key, rows * scale * of_h200(pass + key));
    }
    for (const auto* key :
         {"host.transfer_issue_us", "accumulate.launch_us", "accumulate.merge_memory_ratio",
          "accumulate.add_memory_ratio", "accumulate.copy_memory_ratio", "device_memory.reserved_gigabytes"})
        expect(key, of_h200(key));
    for (const auto& [link, like] : {std::pair{"inside_host.", &h200}, std::pair{"between_hosts.", &cluster}})
        for (const auto* key :
             {"latency_us", "channel_gigabytes_per_second", "channels", "messages_per_block", "busy_speed_ratio",
              "multiprocessors_per_channel", "send_memory_ratio", "receive_memory_ratio"})
            expect(fmt::format("{}{}", link, key), figure_of(*like, fmt::format("{}{}", link, key)));
    BOOST_TEST(machine.between_hosts.uses_kernels());
    expect("uncertainty.percent", 20);
    BOOST_TEST(machine.assumed_margin == 0.2, boost::test_tools::tolerance(1e-12));
    for (const auto& figure : machine.figures)
        if (is_derived(figure)) BOOST_TEST(checked.contains(figure.name), figure.name << " is not tested");
}

BOOST_AUTO_TEST_CASE(a_key_that_is_given_is_taken_and_what_depends_on_it_follows) {
    const auto plain = machine_of(one_host);
    const auto given = machine_of(
        with(with(one_host, {"gpu.memory_gigabytes_per_second", 1000}), {"attention.backward.teraflops", 150}));
    BOOST_TEST(given.memory_bytes_per_second == 1e12);
    BOOST_TEST(given.backward.full_tile_seconds == plain.backward.full_tile_seconds * 255 / 150,
               boost::test_tools::tolerance(1e-9));
    // Messages that hold SMs are kernels, here as in complete files.
    const auto kernels = machine_of(with(one_host, {"inside_host.multiprocessors_per_channel", 1}));
    BOOST_TEST(kernels.inside_host.uses_kernels());
    BOOST_TEST(kernels.inside_host.sms(1e9) == 2);
}

BOOST_DATA_TEST_CASE(nothing_is_derived_for_complete_files_and_every_committed_one_predicts_a_ring,
                     data::make(committed_machines()), name) {
    const auto machine = test::shipped_machine(name);
    BOOST_TEST((derived_figures(machine) == 0) == (machine.assumed_margin == 0));
    BOOST_TEST(machine.notes.empty());  // prices of tiles and rates do not contradict each other
    for (const auto pass : {layouts::Pass::forward, layouts::Pass::backward}) {
        const auto seconds =
            seconds_of_ring(machine, static_cast<int>(std::min<std::int64_t>(machine.gpus(), 4)), pass);
        BOOST_TEST((seconds > 0 && seconds < 10), seconds);
    }
}

/// TFLOP/s of visible pairs, causal, bf16, heads 64:8 of 128, as published where the machine file says.
struct PublishedKernel {
    const char* machine;
    std::int64_t tokens, batch;
    double forward, backward;
};

const PublishedKernel published_kernels[] = {
    {"8xh100", 8192, 1, 655.6, 517.3},      {"8xh100", 16384, 1, 670.4, 560.1},
    {"8xa100", 8192, 2, 217, 173},          {"8xa100", 16384, 2, 203, 175},
    {"gb200_nvl72", 8192, 2, 1559, 1297},   {"gb200_nvl72", 16384, 2, 1609, 1287},
    {"8xmi300x", 8192, 1, 518.29, 433.285}, {"8xmi300x", 16384, 1, 541.55, 412.04},
};
std::ostream& operator<<(std::ostream& out, const PublishedKernel& one) {
    return out << one.machine << ", " << one.tokens << " tokens";
}

// The files give the best rate alone; how rates depend on length and mask is derived.
BOOST_DATA_TEST_CASE(rates_of_published_kernels_are_predicted_within_the_margin, data::make(published_kernels), one) {
    const auto machine = test::shipped_machine(one.machine);
    for (const auto pass : {layouts::Pass::forward, layouts::Pass::backward}) {
        // Heads times the batch: the kernel sees no difference.
        const test::Scenario scenario{.ranks = 1,
                                      .tokens_per_rank = one.tokens,
                                      .layout = "contiguous",
                                      .pass = pass,
                                      .query_heads = 64 * one.batch,
                                      .kv_heads = 8 * one.batch};
        const auto found = simulate(*scenario.schedule(), machine, {});
        const bool forward = pass == layouts::Pass::forward;
        const auto pairs = 0.5 * static_cast<double>(one.tokens) * static_cast<double>(one.tokens + 1);
        const auto flop = (forward ? 4 : 10) * 128 * 64 * static_cast<double>(one.batch) * pairs;
        const auto teraflops = flop / layouts::to_seconds(found.makespan) / 1e12;
        const auto ratio = teraflops / (forward ? one.forward : one.backward);
        BOOST_TEST_MESSAGE(one << ", " << to_string(pass) << ": " << teraflops << ", ratio " << ratio);
        BOOST_TEST(std::abs(ratio - 1) < machine.assumed_margin, to_string(pass) << ": " << ratio);
    }
}

BOOST_AUTO_TEST_SUITE_END()
