// Which keys a rank attends to together, and in which order: see SeenSchedule.

#include "layouts/schedules/seen_schedule.hpp"

#include <ranges>

namespace ringlab::layouts {

bool SeenSchedule::attends_to(int rank, int section) const {
    const auto& keys = gathered_[index_of(rank, section)];
    if (section == 0) return needs(rank, rank);
    return keys.seen || (options().pass == Pass::backward && !keys.ranges.empty());
}

void SeenSchedule::find_launches() {
    launches_.resize(static_cast<std::size_t>(ranks()));
    for (int rank = 0; rank < ranks(); ++rank) add_first_launches(rank);
    if (options().pass == Pass::backward) {
        pairs_when_sent_.resize(static_cast<std::size_t>(hosts() * hosts()));
        for (int rank = 0; rank < ranks(); ++rank)
            for (const auto& launch : launches_[static_cast<std::size_t>(rank)]) {
                if (launch.first == 0) continue;
                auto& pairs = pairs_when_sent_[pair_index(rank, launch.first / ranks_per_host_)];
                pairs = std::max(pairs, launch.pairs);
            }
        for (int rank = 0; rank < ranks(); ++rank) add_last_launches(rank);
    }
    for (auto& launches : launches_) {
        if (launches.empty()) continue;
        launches.front().op.begins = true;
        launches.back().op.ends = true;
    }
}

void SeenSchedule::add_launch(int rank, int first, int end, const Part& keys) {
    auto& launches = launches_[static_cast<std::size_t>(rank)];
    auto op = attend(first, rows_of(rank, query_heads()), keys, 0, first == 0 ? 0 : gathered_slot);
    op.slot(Pool::dkv) = op.slot(Pool::kv);
    const auto before = launches.empty() ? 0 : launches.back().pairs;
    launches.push_back({first, end, before + std::max<std::int64_t>(op.pair_count, 1), op});
}

void SeenSchedule::add_first_launches(int rank) {
    const bool backward = options().pass == Pass::backward;
    std::vector<Interval> others;  // sections
    for (int place = 0; place < hosts(); ++place) {
        const int distance = backward ? backward_order(place) : place;
        int first = first_section(distance), end = end_section(distance);
        while (first < end && !attends_to(rank, first)) ++first;
        while (first < end && !attends_to(rank, end - 1)) --end;
        if (first < end) others.push_back({first, end});
    }
    if (needs(rank, rank)) {
        const auto pairs = pair_count(row_block(rank), rank);
        // Inside a host gradients take too little time for one more launch.
        const bool cut = backward && ranks_per_host_ > 1 && !others.empty() && others.front().end > ranks_per_host_ &&
                         block_tokens(rank) / 16 >= cut_;
        add_launch(rank, 0, 1, own(rank, {0, cut ? end_of_keys(rank, 0, (pairs + 1) / 2) : block_tokens(rank)}));
    }
    for (const auto& sections : others) {
        const auto first = static_cast<int>(sections.begin), end = static_cast<int>(sections.end);
        add_launch(rank, first, end, together(rank, first, end));
    }
}

void SeenSchedule::add_last_launches(int rank) {
    const auto& launches = launches_[static_cast<std::size_t>(rank)];
    if (launches.empty() || launches.front().first > 0) return;
    const auto* of_host = &pairs_when_sent_[pair_index(rank, 0)];
    const auto missing = *std::max_element(of_host, of_host + hosts()) - launches.back().pairs;
    auto begin = launches.front().op.part.tokens.end;
    for (const auto end : {end_of_keys(rank, begin, missing), block_tokens(rank)}) {
        if (begin < end) add_launch(rank, 0, 1, own(rank, {begin, end}));
        begin = end;
    }
}

std::int64_t SeenSchedule::end_of_keys(int rank, std::int64_t begin, std::int64_t pairs) const {
    const auto rows = rows_of(rank, query_heads());
    const auto sees_less = [&](std::int64_t end) { return pair_count(rows, own(rank, {begin, end})) < pairs; };
    // begin + cut * n for n from 0 on. The range is empty if no pairs are wanted.
    const auto cuts = std::views::iota(std::int64_t{0}, (block_tokens(rank) - begin) / cut_ + 1);
    const auto end = [&](std::int64_t cut) { return begin + cut * cut_; };
    const auto found = std::ranges::partition_point(cuts, sees_less, end);
    return found == cuts.end() ? block_tokens(rank) : end(*found);
}

}  // namespace ringlab::layouts
