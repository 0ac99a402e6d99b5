#include "tests/layouts/schedule_cases.hpp"

#include "tests/layouts/schedule_checker.hpp"

namespace ringlab::layouts::testing {

bool suits(const std::string& algorithm, int ranks) {
    if (algorithm == "ulysses") return 8 % ranks == 0;
    if (algorithm == "ulysses:2") return ranks % 2 == 0;
    // These look at each pair of ranks before they begin.
    if (algorithm.starts_with("double-ring:")) return ranks % std::stoi(algorithm.substr(12)) == 0 && ranks < 1000;
    if (algorithm.starts_with("seen") || algorithm.starts_with("merge")) return ranks < 1000;
    return true;
}

Problem problem_of(const Mask& mask) {
    return {.batch = 3, .tokens = mask.tokens(), .query_heads = 8, .kv_heads = 4, .head_dim = 24, .value_dim = 16};
}

std::unique_ptr<Schedule> schedule_of(const Case& c, const ScheduleOptions& options) {
    return make_schedule(problem_of(c.mask), c.mask, c.layout, options);
}

Case exact_case(const std::string& mask, const std::string& layout, std::int64_t tokens, int ranks) {
    auto made = make_mask(mask, tokens);
    auto laid_out = make_layout(layout, made, ranks);
    return {std::move(made), std::move(laid_out)};
}

std::ostream& operator<<(std::ostream& out, const Traffic& t) {
    return out << t.messages << " messages, " << t.bytes << " bytes";
}

Traffic traffic_of(const Schedule& schedule, Pool pool) {
    Traffic traffic;
    for (const auto& ops : written(schedule))
        for (const auto& op : ops)
            if ((op.kind == OpKind::send || op.kind == OpKind::fetch) && op.pool == pool) {
                ++traffic.messages;
                traffic.bytes += op.bytes;
            }
    return traffic;
}

}  // namespace ringlab::layouts::testing
