#include "tests/layouts/schedule_cases.hpp"

#include "tests/layouts/schedule_checker.hpp"

namespace ringlab::layouts::testing {

Problem problem_of(const Mask& mask) {
    auto problem = eight_heads;
    problem.tokens = mask.tokens();
    return problem;
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
