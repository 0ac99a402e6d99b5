#pragma once

#include "layouts/timeline/timeline.hpp"
#include "sim/play/simulate.hpp"

#include <vector>

namespace ringlab::sim {

/// Spans and host issue times of a traced prediction. Operations are counted by rank.
class Trace {
public:
    Trace(std::size_t ranks, int query_heads) : query_heads_(query_heads), spans_(ranks), issued_(ranks) {}

    /// Adds the next operation of rank `id`. Its ring begins at rank `first_rank`.
    void read(int id, int first_rank, const layouts::Op& op, layouts::Interval issued) {
        auto& spans = spans_[static_cast<std::size_t>(id)];
        auto& span =
            spans.emplace_back(layouts::span_of(id, static_cast<layouts::OpIndex>(spans.size()), op, query_heads_));
        if (op.peer >= 0) span.peer += first_rank;
        issued_[static_cast<std::size_t>(id)].push_back(issued);
    }

    void post(int id, std::size_t op, Picoseconds now) {
        auto& span = spans_[static_cast<std::size_t>(id)][op];
        if (span.busy == 0) span.posted = now;
    }

    /// An operation has ended, or a part of it if it stood still in between.
    void end(int id, std::size_t op, Picoseconds began, Picoseconds now) {
        auto& span = spans_[static_cast<std::size_t>(id)][op];
        if (span.busy == 0) span.begin = began;
        span.end = now;
        span.busy += now - began;
    }

    /// Appends all spans to the prediction, rank by rank.
    void give(Prediction& prediction) const {
        for (std::size_t rank = 0; rank < spans_.size(); ++rank) {
            auto& spans = prediction.timeline.spans;
            spans.insert(spans.end(), spans_[rank].begin(), spans_[rank].end());
            prediction.host_issue.insert(prediction.host_issue.end(), issued_[rank].begin(), issued_[rank].end());
        }
    }

private:
    int query_heads_;
    std::vector<std::vector<layouts::Span>> spans_;
    std::vector<std::vector<layouts::Interval>> issued_;
};

}  // namespace ringlab::sim
