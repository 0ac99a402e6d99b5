#include "reference/features/sinks.hpp"

namespace ringlab::reference {

void add_sinks(const layouts::Problem& problem, Tensor& o, Lse& lse) {
    if (problem.sinks.empty()) return;
    const auto width = o.shape(3);
    for (std::size_t row = 0; row < lse.size(); ++row) {
        auto& own = lse.data()[row];
        const double with = lse_with_sink(own, problem.sinks[row % problem.sinks.size()]);
        const double share = share_beside_sink(own, with);
        for (std::size_t d = 0; d < width; ++d) o.data()[row * width + d] *= share;
        own = with;
    }
}

std::vector<double> sink_gradient(const layouts::Problem& problem, const Lse& lse, const Lse& delta) {
    std::vector<double> gradient(problem.sinks.size());
    if (gradient.empty()) return gradient;
    for (std::size_t row = 0; row < lse.size(); ++row) {
        const auto head = row % gradient.size();
        gradient[head] -= share_of_sink(problem.sinks[head], lse.data()[row]) * delta.data()[row];
    }
    return gradient;
}

}  // namespace ringlab::reference
