#include "sim/machine/machine.hpp"
#include "layouts/basics/require.hpp"

#include <fmt/format.h>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <random>
#include <regex>

#include <unistd.h>

using namespace ringlab;
using namespace ringlab::sim;
namespace data = boost::unit_test::data;

namespace {

const std::filesystem::path machines = std::filesystem::path(RINGLAB_SOURCE_DIR) / "experiments" / "machines";

std::string text_of(const std::string& name) {
    std::ifstream file(machines / (name + ".toml"));
    return {std::istreambuf_iterator<char>(file), {}};
}

std::string replaced(std::string text, const std::string& what, const std::string& with) {
    const auto at = text.find(what);
    BOOST_REQUIRE(at != std::string::npos);
    return text.replace(at, what.size(), with);
}

std::string error_of(const std::string& text) {
    try {
        parse_machine(text, "machine.toml");
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

const char* const names[] = {"h200_nvswitch_copy_engine",
                             "h200_nvswitch_nccl",
                             "4xh200_nccl_defaults",
                             "8xh800",
                             "h100_cluster",
                             "h200_cluster",
                             "h200_fat_tree",
                             "h200_rails",
                             "8xa100",
                             "8xh100",
                             "8xb200",
                             "gb200_nvl72",
                             "8xmi300x",
                             "ideal"};

}  // namespace

BOOST_AUTO_TEST_SUITE(machine_files)

BOOST_AUTO_TEST_CASE(an_implementation_stands_in_for_parts_of_a_machine) {
    const auto implementations = machines.parent_path() / "implementations";
    const auto alone = load_machine(machines / "8xh800.toml");
    for (const auto* name : {"ring_flash_attention_fa2.toml", "ring_flash_attention_cudnn.toml"}) {
        const auto machine = load_machine(machines / "8xh800.toml", implementations / name);
        BOOST_TEST(machine.merge_memory_ratio == 19);
        BOOST_TEST(machine.forward.resume_seconds == 0);
        BOOST_TEST(machine.transfer_issue_seconds > alone.transfer_issue_seconds);
        BOOST_TEST(machine.memory_bytes_per_second == alone.memory_bytes_per_second);
        BOOST_TEST(machine.inside_host.link_bytes_per_second == alone.inside_host.link_bytes_per_second);
    }
    const auto wrong = std::filesystem::temp_directory_path() / fmt::format("implementation_{}.toml", ::getpid());
    std::ofstream(wrong) << "[host]\n\ntransfer_issue_us = { value = -1, source = \"wrong\" }\n";
    BOOST_CHECK_EXCEPTION(load_machine(machines / "8xh800.toml", wrong), Error, [&](const auto& error) {
        return std::string(error.what()).starts_with(wrong.string() + ":3: host.transfer_issue_us is -1");
    });
    std::filesystem::remove(wrong);
}

BOOST_DATA_TEST_CASE(a_machine_that_is_written_and_read_again_is_the_same, data::make(names), name) {
    auto machine = load_machine(machines / (std::string(name) + ".toml"));
    machine.backward.work_tile = WorkTile::key_tile;
    machine.backward.groups = {{2, 66}, {4, 30}};
    machine.forward.dropout_tile_seconds = 1.5e-6;
    machine.backward.dropout_tile_seconds = 2.5e-6;
    std::map<std::string, std::string> sources;
    for (const auto& figure : machine.figures) sources[figure.name] = figure.source;
    for (const auto* pass : {"forward", "backward"}) sources[fmt::format("attention.{}.groups", pass)] = "this test";
    for (const auto* pass : {"forward", "backward"}) sources[fmt::format("dropout.{}_tile_us", pass)] = "this test";
    for (const auto& kernel : machine.kernels)  // lists that may be empty, and then are no figure
        for (const auto* pass : {"forward", "backward"})
            sources.try_emplace(fmt::format("kernels.{}.{}.groups", kernel.name, pass), "this test");
    const auto text = machine_text(machine, sources, "Two lines,\nas comments.");
    BOOST_TEST(text.starts_with("# Two lines,\n# as comments.\n"));
    const auto again = parse_machine(text, "again.toml");
    // All but what this test gives, and lists, whose numbers have one name.
    const auto counts = [](const Figure& figure) {
        return !figure.name.starts_with("dropout.") && !figure.name.ends_with(".groups") &&
               !figure.name.ends_with(".channels");
    };
    BOOST_TEST(std::ranges::count_if(again.figures, counts) == std::ranges::count_if(machine.figures, counts));
    std::map<std::string, double> values;
    for (const auto& figure : again.figures) {
        BOOST_TEST(figure.source == sources[figure.name]);
        values[figure.name] = figure.value;
    }
    for (const auto& figure : machine.figures)
        if (counts(figure))
            BOOST_TEST((values.at(figure.name) == figure.value ||
                        std::abs(values.at(figure.name) - figure.value) <= 5e-5 * figure.value),
                       figure.name);
    BOOST_TEST((again.backward.work_tile == WorkTile::key_tile));
    BOOST_TEST(again.forward.dropout_tile_seconds == 1.5e-6, boost::test_tools::tolerance(1e-12));
    BOOST_TEST(again.backward.dropout_tile_seconds == 2.5e-6, boost::test_tools::tolerance(1e-12));
    BOOST_TEST(again.backward.groups.back().at_a_time == 30);
    BOOST_TEST(again.inside_host.channels.size() == machine.inside_host.channels.size());

    auto more = machine;
    more.power_of_gpus = std::vector<double>(static_cast<std::size_t>(machine.gpus_per_host), 0.95);
    more.forward.tail_seconds_per_byte = 1.25e-6;
    more.rotate_memory_ratio = 8;
    auto more_sources = sources;
    for (const auto* section : {"power", "attention.forward.ends", "rotation"}) more_sources[section] = "this test";
    const auto optional = parse_machine(machine_text(more, more_sources, ""), "optional.toml");
    BOOST_TEST((optional.power_of_gpus == more.power_of_gpus));
    BOOST_TEST(optional.forward.tail_seconds_per_byte == 1.25e-6, boost::test_tools::tolerance(1e-12));
    BOOST_TEST(optional.rotate_memory_ratio == 8);

    sources.erase("gpu.multiprocessors");
    BOOST_CHECK_EXCEPTION(machine_text(machine, sources, ""), Error, [](const Error& error) {
        return std::string(error.what()) == "no source is given for 'gpu.multiprocessors' of the machine file";
    });
}

BOOST_AUTO_TEST_CASE(units_in_key_names_become_SI_units) {
    const auto machine = load_machine(machines / "h200_nvswitch_nccl.toml");
    BOOST_TEST(machine.inside_host.latency_seconds == 15 * 1e-6);
    BOOST_TEST(machine.inside_host.channels.front().up_to_bytes == 64.0 * 1024 * 1024);
    BOOST_TEST(machine.memory_bytes_per_second == 4.2e12);
    BOOST_TEST(machine.forward.flops == 598e12);
    // Two messages of 16 MiB travel on 4 channels of 20 GB/s, two of 128 MiB on 15.
    BOOST_TEST(machine.inside_host.rate(32.0 * 1024 * 1024) == 80e9);
    BOOST_TEST(machine.inside_host.rate(256.0 * 1024 * 1024) == 300e9);
    BOOST_TEST(load_machine(machines / "h200_cluster.toml").gpus() == 16384);
    // 8 hosts x 8 ports of 48 GB/s, a quarter of them to the spine; a rail has one port of each of its 64 hosts.
    BOOST_TEST(load_machine(machines / "h200_fat_tree.toml").leaf_bytes_per_second() == 768e9);
    BOOST_TEST(load_machine(machines / "h200_rails.toml").leaf_bytes_per_second() == 3072e9);
}

BOOST_AUTO_TEST_CASE(errors_name_file_line_key_and_what_would_be_right) {
    const auto text = text_of("h200_nvswitch_copy_engine");
    const auto expect = [](const std::string& error, const std::string& part) {
        BOOST_TEST(error.find(part) != std::string::npos, "'" << error << "' lacks '" << part << "'");
    };
    expect(error_of(replaced(text, "\nlatency_us", "\nlatency_ms")), "unknown key 'inside_host.latency_ms'");
    expect(error_of(replaced(text_of("h200_nvswitch_nccl"), "carrier = \"kernels\"", "carrier = \"copy engines\"")),
           "inside_host.multiprocessors_per_channel is 0.5; it must be 0, as copy engines hold none");
    expect(error_of(replaced(text, "[host]", "[host]\nspeed = 3")), "unknown key 'host.speed'");
    expect(error_of(replaced(text, "{ value = 132,", "{ value = -1,")), "gpu.multiprocessors is -1; it must be from 1");
    expect(error_of(replaced(text, "{ value = 132,", "{ value = 1.5,")), "must be a whole number");
    expect(error_of(replaced(text, "{ value = 132,", "{ value = \"x\",")), "must be a number");
    expect(error_of(replaced(text, "{ value = 132,", "{ value = nan,")), "gpu.multiprocessors is nan");
    expect(error_of(replaced(text, "{ value = 132, source = \"H200 data sheet\" }", "132")), "must be written as");
    expect(error_of(replaced(text, "source = \"H200 data sheet\"", "source = \"\"")), "must say in quotes where");
    expect(error_of(replaced(text, "source = \"H200 data sheet\"", "source = \"x\", note = \"y\"")),
           "unknown key 'gpu.multiprocessors.note'");
    expect(error_of(replaced(text, "[topology]", "[topology")), "not valid TOML");
    expect(error_of(replaced(text, "up_to_mebibytes = [inf]", "up_to_mebibytes = [64]")), "must end in inf");
    expect(error_of(replaced(text, "[inf], value = [1]", "[inf], value = [1, 2]")),
           "1 entries of up_to_mebibytes and 2 of value");
    expect(error_of(replaced(text_of("h200_rails"), "\"rails\"", "\"tracks\"")),
           "network.leaves must be \"hosts\" or \"rails\"");
    expect(error_of(replaced(text, "work_tile = \"query tile\"", "work_tile = \"tile\"")),
           "must be \"query tile\" or \"key tile\"");
    expect(error_of(replaced(text, "hosts = { value = 1,", "hosts = { value = 2,")),
           "key 'between_hosts.link_gigabytes_per_second' is missing");
    expect(error_of(replaced(text_of("4xh200-2_calibrated"), "value = [1, 0.97031, ", "value = [1, ")),
           "power.of_gpus has 3 entries; there must be one for each of 4 GPUs of a host");
    // The line of the wrong figure, counted by hand.
    const auto before = text.substr(0, text.find("multiprocessors = "));
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    expect(error_of(replaced(text, "{ value = 132,", "{ value = -1,")), "machine.toml:" + std::to_string(line) + ":");
    BOOST_CHECK_THROW(load_machine(machines / "no_such_file.toml"), Error);
    BOOST_CHECK_THROW(load_machine(machines), Error);
}

BOOST_AUTO_TEST_CASE(all_missing_keys_are_named_at_once) {
    auto text = replaced(text_of("h200_nvswitch_copy_engine"), "\nlink_gigabytes", "\n# link_gigabytes");
    text = replaced(text, "\nteraflops =", "\n# teraflops =");
    BOOST_TEST(error_of(text) ==
               "machine.toml: 2 keys are missing: 'attention.forward.teraflops', "
               "'inside_host.link_gigabytes_per_second'; calibrate --list-machine-keys shows all keys");
    text += "\n[kernels.small]\nscores = \"plain\"\n";
    const auto error = error_of(text);
    BOOST_TEST(error.starts_with("machine.toml: 12 keys are missing: 'attention.forward.teraflops', "), error);
    BOOST_TEST(error.find(", 'kernels.small.backward.power_teraflops'; calibrate") != std::string::npos, error);
    BOOST_TEST(error_of("name = \"none\"") ==
               "machine.toml: 5 keys are missing: 'topology.hosts', 'topology.gpus_per_host', "
               "'attention.forward.teraflops', 'inside_host.link_gigabytes_per_second', 'device_memory.gigabytes'; "
               "calibrate --list-machine-keys shows all keys");
}

BOOST_AUTO_TEST_CASE(ports_matter_between_hosts_alone) {
    const auto text =
        replaced(text_of("h200_nvswitch_copy_engine"), "gpus_per_host = { value = 8", "gpus_per_host = { value = 4");
    const auto machine = parse_machine(text, "machine.toml");
    BOOST_TEST_REQUIRE(machine.notes.size() == 1u);
    BOOST_TEST(machine.notes.front() == "topology.nics_per_host, 8 for 4 GPUs, has no effect on one host");
    BOOST_TEST(machine.gpus() == 4);
    BOOST_TEST(machine.nics_per_host == 4);
    const auto expected = "topology.nics_per_host must divide topology.gpus_per_host";
    const auto error =
        error_of(replaced(text_of("h200_cluster"), "nics_per_host = { value = 8", "nics_per_host = { value = 3"));
    BOOST_TEST(error.find(expected) != std::string::npos, error);
}

BOOST_AUTO_TEST_CASE(mutated_files_give_one_clear_line_or_a_machine) {
    const auto valid = text_of("h200_nvswitch_nccl");
    std::mt19937 bits(11);
    int errors = 0;
    for (int trial = 0; trial < 2000; ++trial) {
        auto text = valid;
        for (unsigned edits = 1 + bits() % 4; edits > 0; --edits) {
            const auto at = bits() % text.size();
            switch (bits() % 4) {
                case 0: text[at] = static_cast<char>(bits() % 256); break;
                case 1: text.erase(at, 1 + bits() % 30); break;
                case 2: text.insert(at, text.substr(bits() % text.size(), bits() % 30)); break;
                case 3: text[at] = "0123456789.-[]{}=\"\n#e"[bits() % 21]; break;
            }
            if (text.empty()) text = "x";
        }
        const auto error = error_of(text);
        if (error.empty()) continue;
        ++errors;
        BOOST_TEST(error.find('\n') == std::string::npos, error);
        BOOST_TEST(error.substr(0, 12) == "machine.toml", error);
    }
    BOOST_TEST(errors > 500);
}

BOOST_AUTO_TEST_SUITE_END()
