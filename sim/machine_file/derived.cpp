#include "sim/machine_file/derived.hpp"

#include "sim/machine/machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>

namespace ringlab::sim {
namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();
constexpr double highest_rate = 1e9;  // the largest finite rate that a file may have
constexpr double sms_of_h200 = 132;   // of H200

/// Figures of experiments/machines/2xh200_calibrated.toml, which tests/sim/derived_test.cpp compares with these.
namespace h200 {

constexpr double memory = 4776.8, capacity = 150.1;

struct Pass {
    const char* name;
    double flop_of_pair;  ///< for each dim
    double launch, work_tile, full_tile, partial_tile, resume;
    double begin;
};
constexpr Pass forward{.name = "forward",
                       .flop_of_pair = 4,
                       .launch = 7.9652,
                       .work_tile = 2.0719,
                       .full_tile = 1.4895,
                       .partial_tile = 2.1493,
                       .resume = 1.6194,
                       .begin = 6.6898};
// H200's backward tiles have 64 rows, so a tile of 128 rows costs as much as two of them. A derived query tile stands
// for a key tile of one query head.
constexpr Pass backward{.name = "backward",
                        .flop_of_pair = 10,
                        .launch = 8.8192,
                        .work_tile = 9.611,
                        .full_tile = 2 * 1.9168,
                        .partial_tile = 2 * 2.8921,
                        .resume = 0,
                        .begin = 0};

}  // namespace h200

constexpr const char* derived = "derived: ";  // sources of derived figures begin with it

bool is_derived(const Figure& figure) { return figure.source.starts_with(derived); }

class Derivation {
public:
    Derivation(toml::table& root, std::string_view name) : root_(root), name_(name) {}

    void derive() {
        required();
        if (root_["device_memory"].is_table()) reserved_memory();
        if (!added_) return;  // the file is complete
        reserved_memory();
        for (const auto& section : {std::string("inside_host"), std::string("between_hosts")})
            if (root_[section].is_table())
                text(section + ".carrier", uses_kernels(section) ? "kernels" : "copy engines");
        for (const auto* pass : {&h200::forward, &h200::backward}) tiles(*pass);
        number("uncertainty.percent", 20, "the margin of a machine that was not measured, see uncertainty.hpp");
    }

private:
    /// Adds the keys that every complete file has, except those with which a user must describe the machine.
    void required() {
        text("name", std::string(name_));
        text("description", "described by a few keys, the others derived");
        number("topology.nics_per_host", given("topology.gpus_per_host", 1),
               "one for each GPU of a host, as in published hosts");
        number(
            "gpu.multiprocessors", sms_of_h200,
            "as H200: it only decides how full the last wave of work tiles is, because tile prices are scaled with it");
        number("gpu.memory_gigabytes_per_second",
               std::min(h200::memory / h200::capacity * given("device_memory.gigabytes", h200::capacity), highest_rate),
               "as much for each GB of device memory as H200, 31.8: GPUs have bandwidth in proportion to capacity, 25 "
               "to 44 on A100, H100, H200, B200 and MI300X");
        number("gpu.attention_memory_gigabytes_per_second", 0, "as H200: rings are predicted as well without it");
        number("host.transfer_issue_us", 14.784, "as H200: a CPU's time");
        number("attention.backward.teraflops", 0.85 * given("attention.forward.teraflops", infinite),
               "0.85 of the forward rate: published kernels of five GPUs have 0.78 to 0.89");
        for (const auto* pass : {&h200::forward, &h200::backward}) {
            const auto key = [&](const char* end) { return fmt::format("attention.{}.{}", pass->name, end); };
            number(key("head_dim"), 128, "as H200: the dims that published rates are of");
            number(key("value_dim"), 128, "as H200: the dims that published rates are of");
            number(key("launch_us"), pass->launch, "as H200: launch, ramp and drain, about alike on all GPUs");
            number(key("begin_us"), pass->begin, "as H200: launches");
            number(key("begin_memory_ratio"), 0, "the rate that was given is taken to be that of whole passes");
            number(key("power_teraflops"), infinite,
                   "the rate that was given is taken to be what power allows without end");
        }
        number("accumulate.launch_us", 7.1164, "as H200: a launch, about alike on all GPUs");
        number("accumulate.merge_memory_ratio", 5, "as H200: counted in bytes");
        number("accumulate.add_memory_ratio", 3.2835, "as H200: counted in bytes");
        number("accumulate.copy_memory_ratio", 7.0363, "as H200: counted in bytes");
        link("inside_host", 5.8927, 1, "as H200 over copy engines");
        if (given("topology.hosts", 1) > 1 || root_["between_hosts"].is_table())
            link("between_hosts", 8, 2, "as h200_cluster.toml, where NCCL is assumed");
    }

    /// Whether messages are kernels: as the file's `carrier` says; without one, if messages hold SMs; without that,
    /// between hosts but not inside one.
    bool uses_kernels(const std::string& section) const {
        if (const auto carrier = root_[section]["carrier"].value<std::string>()) return *carrier == "kernels";
        const auto held = root_[section]["multiprocessors_per_channel"]["value"].value<double>();
        return held ? *held > 0 : section == "between_hosts";
    }

    void link(const std::string& section, double latency, double messages, const char* how) {
        const bool kernels = uses_kernels(section);
        number(section + ".latency_us", latency, how);
        number(section + ".channel_gigabytes_per_second", infinite, "channels are never the limit");
        add(section + ".channels", figure(toml::array{kernels ? 2 : 1}, how), "up_to_mebibytes", toml::array{infinite});
        number(section + ".messages_per_block", messages, how);
        number(section + ".busy_speed_ratio", 1, "as H200: messages are as fast beside an attend");
        number(section + ".multiprocessors_per_channel", kernels ? 0.5 : 0, how);
        number(section + ".send_memory_ratio", 1, "as H200: every byte is read once");
        number(section + ".receive_memory_ratio", 1, "as H200: every byte is written once");
    }

    void reserved_memory() {
        number("device_memory.reserved_gigabytes", 0.6, "as H200: CUDA context and loaded kernels");
    }

    /// Adds H200's prices of work tiles, times one factor with which a work tile over 32Ki keys runs at `teraflops`. A
    /// file with any price of tiles must have all of them, so nothing is added to it.
    void tiles(const h200::Pass& pass) {
        const auto section = fmt::format("attention.{}.", pass.name);
        if (root_.at_path(section + "full_tile_us") || root_.at_path(section + "partial_tile_us")) return;
        constexpr double side = 128, count = 32 * 1024 / side, micro = 1e-6, tera = 1e12;
        const auto flop = count * pass.flop_of_pair * side * side * side;
        const auto seconds_of_h200 = (pass.work_tile + count * pass.full_tile) * micro;
        const auto rate_of_sm =
            given(section + "teraflops", infinite) * tera / given("gpu.multiprocessors", sms_of_h200);
        const auto scale = flop / rate_of_sm / seconds_of_h200;
        const auto price = [&](const char* key, double value) {
            number(section + key, scale * value,
                   "H200's price of a tile of 128 x 128, times a factor of the pass with which a work tile over 32Ki "
                   "keys runs at teraflops");
        };
        text(section + "work_tile", "query tile");
        if (&pass == &h200::backward) text(section + "launch_rule", "list schedule");
        number(section + "tile_rows", 128, "as H200, forward: the commonest tiles");
        number(section + "tile_keys", 128, "as H200, forward: the commonest tiles");
        add(section + "groups", figure(toml::array{}, "SMs share no work tile"), "at_a_time", toml::array{});
        price("work_tile_us", pass.work_tile);
        price("full_tile_us", pass.full_tile);
        price("partial_tile_us", pass.partial_tile);
        price("resume_us", pass.resume);
    }

    /// A figure of the file, derived or not; `otherwise` if it is missing or not a positive number. The reader refuses
    /// the latter.
    double given(const std::string& key, double otherwise) const {
        const auto value = root_.at_path(key)["value"].value<double>();
        return value && *value > 0 ? *value : otherwise;
    }

    template <class Value>
    static toml::table figure(Value value, std::string_view how) {
        return toml::table{{"value", std::move(value)}, {"source", derived + std::string(how)}};
    }

    void number(const std::string& key, double value, const char* how) { add(key, figure(value, how)); }
    void text(const std::string& key, std::string value) { add(key, std::move(value)); }

    void add(const std::string& key, toml::table figure, const char* list, toml::array values) {
        figure.insert(list, std::move(values));
        add(key, std::move(figure));
    }

    /// Adds a key, if it is missing, and the sections that it lies in. If the file has something else in the place of a
    /// section, the reader refuses the file later.
    template <class Value>
    void add(const std::string& key, Value value) {
        if (root_.at_path(key)) return;
        auto* section = &root_;
        std::size_t begin = 0;
        for (auto dot = key.find('.'); dot != std::string::npos; begin = dot + 1, dot = key.find('.', begin)) {
            const auto found = section->insert(key.substr(begin, dot - begin), toml::table{}).first;
            section = found->second.as_table();
            if (section == nullptr) return;
        }
        section->insert(key.substr(begin), std::move(value));
        added_ = true;
    }

    toml::table& root_;
    std::string_view name_;
    bool added_ = false;
};

}  // namespace

std::int64_t derived_figures(const Machine& machine) { return std::ranges::count_if(machine.figures, is_derived); }

std::string derived_text(const Machine& machine) {
    std::string text;
    for (const auto& figure : machine.figures)
        if (is_derived(figure)) text += fmt::format("{} = {}: {}\n", figure.name, figure.value, figure.source);
    return text;
}

void derive_missing_keys(toml::table& root, std::string_view name) { Derivation(root, name).derive(); }

}  // namespace ringlab::sim
