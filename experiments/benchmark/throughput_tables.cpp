#include "experiments/benchmark/throughput_record.hpp"
#include "experiments/console/table.hpp"

#include <fmt/format.h>

#include <cmath>

namespace ringlab::experiments {
namespace {

using Kind = ThroughputCase::Kind;

/// A number of a record; NaN, which tables show as "-", where it has none.
double number(const Record& record, const std::string& run, const std::string& column) {
    return record.has(run, "runs/" + column) ? record.number(run, column) : std::nan("");
}

std::string cell(double value, const char* format) {
    return std::isnan(value) ? "-" : fmt::format(fmt::runtime(format), value);
}
std::string teraflops(double rate) { return cell(rate * 1e-12, "{:.0f}"); }
std::string ratio(double value) { return cell(value, "{:.3f}"); }
std::string percent(double part) { return cell(part * 100, "{:.1f} %"); }
std::string milliseconds(double seconds) { return cell(seconds * 1e3, "{:.4g}"); }
std::string microseconds(double seconds) { return cell(seconds * 1e6, "{:.0f}"); }

std::string ring_table(const Record& record, const std::vector<ThroughputCase>& cases, double ceiling) {
    Table table({"shape", "mask", "tokens/GPU", "layout", "schedule", "transport", "kernels", "fwd ms", "bwd ms", "fwd",
                 "bwd", "fwd+bwd", "spread", "fwd/one GPU", "fwd+bwd/one GPU", "fwd/matrix", "issue fwd us", "bwd us",
                 "extra MiB"});
    double one_forward = std::nan(""), one_both = std::nan("");
    bool any = false;
    for (const auto& which : cases) {
        if (which.kind != Kind::ring && which.kind != Kind::same_work) continue;
        any = true;
        const auto value = [&](const char* name) { return number(record, which.name(), name); };
        const bool one_gpu = which.kind == Kind::same_work;
        if (one_gpu) one_forward = value("rate_forward"), one_both = value("rate_both");
        const auto& c = which.which;
        constexpr double mebibyte = 1 << 20;
        table.add({which.shape, c.mask, fmt::format("{}", c.tokens / c.ranks), one_gpu ? "(one GPU)" : c.layout,
                   one_gpu ? "-" : c.schedule, one_gpu ? "-" : which.transport, which.kernels,
                   milliseconds(value("rate_forward_seconds")), milliseconds(value("rate_backward_seconds")),
                   teraflops(value("rate_forward")), teraflops(value("rate_backward")), teraflops(value("rate_both")),
                   percent(value("rate_both_spread")), ratio(value("rate_forward") / one_forward),
                   ratio(value("rate_both") / one_both), ratio(value("rate_forward") / ceiling),
                   microseconds(value("issue_seconds_forward")), microseconds(value("issue_seconds_backward")),
                   cell(value("extra_bytes") / mebibyte, "{:.0f}")});
    }
    return any ? "Rings, TFLOP/s per GPU\n" + table.text() + "\n" : "";
}

std::string device_table(const Record& record, const std::vector<ThroughputCase>& cases, double ceiling) {
    Table table({"shape", "mask",   "tokens",       "kernels", "fwd ms",  "fwd",  "cuDNN",
                 "ratio", "spread", "fwd/matrix",   "carried", "bwd ms",  "bwd",  "cuDNN",
                 "ratio", "spread", "kernel alone", "determ.", "fwd+bwd", "cuDNN"});
    bool any = false;
    for (const auto& which : cases) {
        const auto value = [&](const char* name) { return number(record, which.name(), name); };
        if (which.kind != Kind::device || std::isnan(value("rate_forward"))) continue;
        any = true;
        const auto both = [&](const std::string& forward, const std::string& backward) {
            const double forward_seconds = value(("rate_" + forward + "_seconds").c_str());
            const double backward_seconds = value(("rate_" + backward + "_seconds").c_str());
            return (value(("rate_" + forward).c_str()) * forward_seconds +
                    value(("rate_" + backward).c_str()) * backward_seconds) /
                   (forward_seconds + backward_seconds);
        };
        table.add({which.shape,
                   which.which.mask,
                   fmt::format("{}", which.which.tokens),
                   which.kernels,
                   milliseconds(value("rate_forward_seconds")),
                   teraflops(value("rate_forward")),
                   teraflops(value("rate_cudnn_forward")),
                   ratio(value("ratio_forward")),
                   percent(value("ratio_forward_spread")),
                   ratio(value("rate_forward") / ceiling),
                   ratio(value("rate_forward_carried") / value("rate_forward")),
                   milliseconds(value("rate_backward_seconds")),
                   teraflops(value("rate_backward")),
                   teraflops(value("rate_cudnn_backward")),
                   ratio(value("ratio_backward")),
                   percent(value("ratio_backward_spread")),
                   teraflops(value("rate_backward_kernel")),
                   ratio(value("rate_backward_deterministic") / value("rate_backward")),
                   teraflops(both("forward", "backward")),
                   teraflops(both("cudnn_forward", "cudnn_backward"))});
    }
    return any ? "Kernels alone on one GPU, back to back (sustained), TFLOP/s\n" + table.text() + "\n" : "";
}

/// Single passes, in the burst protocol. Empty for records without.
std::string burst_table(const Record& record, const std::vector<ThroughputCase>& cases) {
    Table table({"shape", "mask", "tokens", "kernels", "fwd ms", "fwd", "cuDNN", "ratio", "spread", "bwd ms", "bwd",
                 "cuDNN", "ratio", "spread"});
    bool any = false;
    for (const auto& which : cases) {
        const auto value = [&](const char* name) { return number(record, which.name(), name); };
        if (which.kind != Kind::device || std::isnan(value("burst_rate_forward"))) continue;
        any = true;
        table.add({which.shape, which.which.mask, fmt::format("{}", which.which.tokens), which.kernels,
                   milliseconds(value("burst_rate_forward_seconds")), teraflops(value("burst_rate_forward")),
                   teraflops(value("burst_rate_cudnn_forward")), ratio(value("burst_ratio_forward")),
                   percent(value("burst_ratio_forward_spread")), milliseconds(value("burst_rate_backward_seconds")),
                   teraflops(value("burst_rate_backward")), teraflops(value("burst_rate_cudnn_backward")),
                   ratio(value("burst_ratio_backward")), percent(value("burst_ratio_backward_spread"))});
    }
    return any ? "Single passes on one GPU (burst), TFLOP/s\n" + table.text() + "\n" : "";
}

std::string ceiling_lines(const Record& record) {
    const std::string run = "ceilings";
    if (!record.has(run)) return "";
    const double product = number(record, run, "rate_matrix_product");
    std::string text = std::isnan(product)
                           ? "Matrix product: none (" + record.text(run, "absent_matrix_product") + ")\n"
                           : fmt::format("Matrix product: {} TFLOP/s\n", teraflops(product));
    for (const std::string transport : {"copy", "nccl"}) {
        const auto group = "link/" + transport;
        if (!record.has(run, group)) continue;
        const auto bytes = record.numbers(run, group + "/message");
        const auto bandwidth = record.numbers(run, group + "/bandwidth");
        text += "Link, " + transport + ":";
        for (std::size_t i = 0; i < bytes.size(); ++i)
            text += fmt::format("{} {:.0f} GB/s at {:.0f} MiB", i == 0 ? "" : ",", bandwidth[i] * 1e-9,
                                bytes[i] / (1 << 20));
        text += "\n";
    }
    return text;
}

/// Why a column is empty.
std::string absences(const Record& record, const std::vector<ThroughputCase>& cases) {
    std::string text;
    for (const auto& which : cases) {
        const bool has_cudnn = !std::isnan(number(record, which.name(), "rate_cudnn_forward")) ||
                               !std::isnan(number(record, which.name(), "burst_rate_cudnn_forward"));
        if (which.kind != Kind::device || has_cudnn) continue;
        const auto line =
            fmt::format("cuDNN is missing for {}: {}\n", which.name(), record.text(which.name(), "absent_cudnn"));
        text += line;
    }
    return text;
}

}  // namespace

std::string throughput_tables(const Record& record, const std::vector<ThroughputCase>& cases) {
    const double ceiling = number(record, "ceilings", "rate_matrix_product");
    return ring_table(record, cases, ceiling) + device_table(record, cases, ceiling) + burst_table(record, cases) +
           ceiling_lines(record) + absences(record, cases);
}

}  // namespace ringlab::experiments
