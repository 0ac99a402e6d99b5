#include "experiments/validation/kineto/kineto_trace.hpp"
#include "layouts/basics/require.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>
#include <boost/test/unit_test.hpp>

#include <filesystem>
#include <fstream>

using namespace ringlab::experiments;

namespace {

/// A folder of traces that goes with them.
class TraceFolder {
public:
    TraceFolder() : path_(std::filesystem::temp_directory_path() / fmt::format("ringlab_kineto_test_{}", ::getpid())) {
        std::filesystem::create_directories(path_);
    }
    ~TraceFolder() { std::filesystem::remove_all(path_); }
    TraceFolder(const TraceFolder&) = delete;
    TraceFolder& operator=(const TraceFolder&) = delete;

    std::string operator()(const std::string& name, const std::string& text) const {
        std::ofstream(path_ / name) << text;
        return path_ / name;
    }

private:
    std::filesystem::path path_;
};

struct WrittenEvent {
    std::string category, name;
    double begin, duration;  // us
};

std::string trace_text(int rank, int world, const std::vector<WrittenEvent>& events, std::int64_t base_ns = 5000,
                       const std::string& groups = "[]") {
    std::vector<std::string> lines{R"({"ph":"M","name":"process_name","pid":1,"tid":0,"args":{"name":"python"}})"};
    for (const auto& event : events)
        lines.push_back(
            fmt::format(R"({{"ph":"X","cat":"{}","name":"{}","pid":0,"tid":7,"ts":{},"dur":{},"args":{{"stream":7}}}})",
                        event.category, event.name, event.begin, event.duration));
    return fmt::format(
        R"({{"schemaVersion":1,"deviceProperties":[{{"id":0}}],"distributedInfo":{{"backend":"nccl","rank":{},)"
        R"("world_size":{},"pg_config":{}}},"baseTimeNanoseconds":{},"traceEvents":[{}],"traceName":"t"}})",
        rank, world, groups, base_ns, fmt::join(lines, ","));
}

std::string read_error_of(const auto& call) {
    try {
        call();
    } catch (const ringlab::Error& error) {
        BOOST_TEST(std::string(error.what()).find('\n') == std::string::npos);
        return error.what();
    }
    return "no error";
}

void require_contains(const std::string& text, const std::string& part) {
    BOOST_TEST(text.find(part) != std::string::npos, "'" << text << "' lacks '" << part << "'");
}

constexpr ringlab::layouts::Picoseconds us = 1000000;
const std::string forward_kernel = "void flash_fwd_kernel<Traits>", backward_kernel = "fmha_cutlassB_bf16",
                  message_kernel = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)";

}  // namespace

BOOST_AUTO_TEST_SUITE(kineto)

// In us from the first event that counts:
//   rank 0 computes 0-20 (forward), 30-40 (other) and 50-80 (backward); messages are under way 10-35, 45-55 and 80-90
//   rank 1 computes 10-60 and, on another stream, 20-30
// Copies between host and device, what the CPU does, and what lies before the first of these do not count.
BOOST_AUTO_TEST_CASE(exposed_communication_idle_time_and_balance_are_those_of_a_drawing) {
    const TraceFolder folder;
    const auto first = folder("0.json", trace_text(0, 2,
                                                   {{"cpu_op", "aten::scaled_dot_product_attention", 0, 500},
                                                    {"user_annotation", "nccl:send", 0, 500},
                                                    {"kernel", "vectorized_elementwise_kernel", 0, 3},
                                                    {"kernel", forward_kernel, 100, 20},
                                                    {"kernel", message_kernel, 110, 25},
                                                    {"kernel", "triton_merge", 130, 10},
                                                    {"kernel", message_kernel, 145, 10},
                                                    {"kernel", backward_kernel, 150, 30},
                                                    {"gpu_memcpy", "Memcpy PtoP (Device -> Device)", 180, 10},
                                                    {"gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 300, 10}}));
    // The clock of this file begins 5 us earlier.
    const auto second = folder("1.json", trace_text(1, 2,
                                                    {{"kernel", "cudnn_generated_fort_native_sdpa_sm90_fprop", 115, 50},
                                                     {"kernel", forward_kernel, 125, 10}},
                                                    0));
    const auto measured = join_ranks({read_kineto(second), read_kineto(first)});
    BOOST_TEST(measured.ranks == (std::vector<int>{0, 1}), boost::test_tools::per_element());
    BOOST_TEST(!measured.clocks_disagree);
    BOOST_TEST(measured.timeline.makespan() == 90 * us);
    BOOST_TEST(measured.attention.at(0).at(0) == 20 * us);
    BOOST_TEST(measured.attention.at(0).at(1) == 30 * us);
    BOOST_TEST(measured.attention.at(1).at(0) == 50 * us);
    const auto shares = rank_shares(measured.timeline);
    BOOST_TEST(shares.at(0).compute == 60 * us);
    BOOST_TEST(shares.at(0).communication == 45 * us);
    BOOST_TEST(shares.at(0).exposed == 25 * us);  // 20-30, 45-50, 80-90
    BOOST_TEST(shares.at(0).idle == 5 * us);      // 40-45
    BOOST_TEST(shares.at(1).compute == 50 * us);
    BOOST_TEST(shares.at(1).communication == 0);
    BOOST_TEST(shares.at(1).exposed == 0);
    BOOST_TEST(shares.at(1).idle == 40 * us);
}

BOOST_AUTO_TEST_CASE(of_operators_on_the_cpu_the_innermost_attention_aten_and_ringlab_count_and_messages_of_gloo) {
    const TraceFolder folder;
    const auto file =
        folder("0.json", trace_text(0, 1,
                                    {{"cpu_op", "RingAttention", 0, 100},
                                     {"cpu_op", "c10d::send", 1, 2},
                                     {"user_annotation", "gloo:send", 2, 60},
                                     {"cpu_op", "aten::scaled_dot_product_attention", 10, 20},
                                     {"cpu_op", "aten::_scaled_dot_product_flash_attention_for_cpu", 12, 16},
                                     {"cpu_op", "ringlab::compute", 64, 4},
                                     {"cpu_op", "aten::add_", 70, 5},
                                     {"cpu_op", "ScaledDotProductFlashAttentionForCpuBackward0", 80, 15},
                                     {"cpu_op", "aten::_flash_attention_for_cpu_backward", 82, 10}}));
    const auto trace = read_kineto(file);
    BOOST_TEST(trace.attention[0] == 16 * us);
    BOOST_TEST(trace.attention[1] == 10 * us);
    const auto share = rank_shares(join_ranks({trace}).timeline).at(0);
    BOOST_TEST(share.compute == (16 + 4 + 5 + 10) * us);
    BOOST_TEST(share.communication == 60 * us);
    BOOST_TEST(share.exposed == (60 - 16) * us);
    BOOST_TEST(share.idle == (90 - 60 - 4 - 5 - 10) * us);
}

BOOST_AUTO_TEST_CASE(ranks_whose_clocks_have_nothing_in_common_begin_together) {
    const TraceFolder folder;
    const auto kernels = std::vector<WrittenEvent>{{"kernel", forward_kernel, 100, 20}};
    const auto measured = join_ranks({read_kineto(folder("0.json", trace_text(0, 2, kernels))),
                                      read_kineto(folder("1.json", trace_text(1, 2, kernels, 900000000)))});
    BOOST_TEST(measured.clocks_disagree);
    BOOST_TEST(measured.timeline.makespan() == 20 * us);
}

BOOST_AUTO_TEST_CASE(ranks_of_one_process_group_are_enough) {
    const TraceFolder folder;
    const auto kernels = std::vector<WrittenEvent>{{"kernel", forward_kernel, 100, 20}};
    const auto text = [&](int rank) {
        return trace_text(rank, 8, kernels, 0,
                          R"([{"pg_name":"0","ranks":[0,1,2,3,4,5,6,7]},{"ranks":[6,2]},{"ranks":[7]},{}])");
    };
    const auto two = read_kineto(folder("2.json", text(2))), six = read_kineto(folder("6.json", text(6))),
               seven = read_kineto(folder("7.json", text(7)));
    BOOST_TEST(join_ranks({six, two}).ranks == (std::vector<int>{2, 6}), boost::test_tools::per_element());
    require_contains(read_error_of([&] {
                         join_ranks({two, seven});
                     }),
                     "no trace of rank 0 is given, of a job of 8 ranks");
    require_contains(read_error_of([&] { join_ranks({seven}); }), "no trace of rank 0 is given, of a job of 8 ranks");
}

BOOST_AUTO_TEST_CASE(what_is_wrong_with_a_trace_is_told_in_one_line) {
    const TraceFolder folder;
    const auto kernels = std::vector<WrittenEvent>{{"kernel", forward_kernel, 100, 20}};
    const auto whole = trace_text(0, 2, kernels);
    const auto error = [&](const std::string& name, const std::string& text) {
        const auto file = folder(name, text);
        return read_error_of([&] { read_kineto(file); });
    };
    for (const auto size : {whole.size() - 1, whole.size() / 2, std::size_t{0}})
        require_contains(error("cut.json", whole.substr(0, size)), "is not whole");
    require_contains(error("a.json", "{}"), "has no traceEvents");
    require_contains(error("a.json", R"({"traceEvents":[]})"), "does not say which rank it is of");
    require_contains(error("a.json", R"({"traceEvents":[{"ph":3}]})"), "is no trace of torch.profiler");
    require_contains(error("a.json", trace_text(2, 2, kernels)), "does not say which rank it is of");
    require_contains(error("a.json", trace_text(0, 2, {{"kernel", "gemm", 0, 1}, {"kernel", message_kernel, 0, 1}})),
                     "has no attention among its 2 GPU kernels");
    require_contains(read_error_of([] { read_kineto("none.json"); }), "cannot be read");
    const auto one = read_kineto(folder("0.json", whole)), again = read_kineto(folder("again.json", whole)),
               other = read_kineto(folder("other.json", trace_text(1, 3, kernels)));
    require_contains(read_error_of([&] { join_ranks({one}); }), "no trace of rank 1 is given, of a job of 2 ranks");
    require_contains(read_error_of([&] { join_ranks({one, again}); }), "are both of rank 0");
    require_contains(read_error_of([&] { join_ranks({one, other}); }), "of a job of 2 ranks and");
}

BOOST_AUTO_TEST_SUITE_END()
