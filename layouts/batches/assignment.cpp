#include "layouts/batches/assignment.hpp"

#include "layouts/basics/require.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

namespace ringlab::layouts {
namespace {

constexpr std::size_t nobody = std::numeric_limits<std::size_t>::max();

/// Up to three documents of a ring.
struct DocumentGroup {
    std::array<std::size_t, 3> documents{nobody, nobody, nobody};
    std::int64_t tokens = 0;
    double seconds = 0;
};

/// A group of documents of one ring for a group of another one; either may have no document.
struct Exchange {
    std::size_t from = nobody, to = nobody;  ///< rings
    DocumentGroup given, taken;
};

class Assigner {
public:
    Assigner(std::span<const BatchDocument> documents, const RingSet& set)
        : documents_(documents),
          set_(set),
          rings_(set.ranks.size()),
          tokens_(rings_, 0),
          seconds_(rings_, 0),
          held_(rings_) {}

    bool run() {
        const auto most = std::ranges::max(set_.ranks) * set_.most_tokens;
        if (std::ranges::any_of(documents_, [&](const BatchDocument& one) { return one.tokens > most; })) return false;
        place_longest_first();
        if (!make_room()) return false;
        balance();
        return true;
    }

    Assignment assignment() && {
        for (auto& documents : held_) std::ranges::sort(documents);
        return {set_.ranks, std::move(held_)};
    }

private:
    std::int64_t room(std::size_t ring) const { return set_.ranks[ring] * set_.most_tokens - tokens_[ring]; }

    /// Time of a ring that has so much more work.
    double time(std::size_t ring, double more = 0) const {
        const auto slowdown = set_.slowdowns.empty() ? 1.0 : set_.slowdowns[ring];
        return slowdown * (seconds_[ring] + more) / set_.ranks[ring];
    }

    void add(std::size_t ring, std::size_t document) {
        held_[ring].push_back(document);
        tokens_[ring] += documents_[document].tokens;
        seconds_[ring] += documents_[document].seconds;
    }

    void remove(std::size_t ring, std::size_t document) {
        std::erase(held_[ring], document);
        tokens_[ring] -= documents_[document].tokens;
        seconds_[ring] -= documents_[document].seconds;
    }

    void place_longest_first() {
        std::vector<std::size_t> order(documents_.size());
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
            const auto &x = documents_[a], &y = documents_[b];
            return x.seconds != y.seconds ? x.seconds > y.seconds : x.tokens > y.tokens;
        });
        for (const auto document : order) {
            const auto& one = documents_[document];
            std::size_t best = nobody, roomiest = 0;
            for (std::size_t ring = 0; ring < rings_; ++ring) {
                if (room(ring) > room(roomiest)) roomiest = ring;
                if (room(ring) < one.tokens) continue;
                if (best == nobody || time(ring, one.seconds) < time(best, one.seconds)) best = ring;
            }
            add(best == nobody ? roomiest : best, document);
        }
    }

    /// Nothing, each document, each pair of documents of a ring and, if asked for, three of its shortest ones, sorted
    /// by tokens. Of a ring with very many documents only the shortest ones.
    std::vector<DocumentGroup> groups_of(std::size_t ring, bool with_threes) const {
        constexpr std::size_t most_documents = 192, most_in_threes = 32;
        auto documents = held_[ring];
        std::ranges::sort(documents);  // the order must not depend on earlier exchanges
        std::ranges::stable_sort(documents, {}, [&](std::size_t document) { return documents_[document].tokens; });
        documents.resize(std::min(documents.size(), most_documents));
        std::vector<DocumentGroup> found{{}};
        const auto extend = [&](auto self, DocumentGroup group, std::size_t size, std::size_t end) -> void {
            for (std::size_t i = 0; i < end; ++i) {
                const auto& one = documents_[documents[i]];
                auto more = group;
                more.documents[size] = documents[i];
                more.tokens += one.tokens;
                more.seconds += one.seconds;
                found.push_back(more);
                if (size == 0 || (size == 1 && with_threes && end <= most_in_threes)) self(self, more, size + 1, i);
            }
        };
        extend(extend, {}, 0, documents.size());
        std::ranges::stable_sort(found, {}, &DocumentGroup::tokens);
        return found;
    }

    void apply(const Exchange& exchange) {
        const auto move = [&](const DocumentGroup& group, std::size_t from, std::size_t to) {
            for (const auto document : group.documents)
                if (document != nobody) remove(from, document), add(to, document);
        };
        move(exchange.given, exchange.from, exchange.to);
        move(exchange.taken, exchange.to, exchange.from);
    }

    /// Exchanges documents until no ring has more tokens than it may have. Returns whether that was possible.
    bool make_room() {
        std::size_t hand_overs = 0;
        for (;;) {
            std::size_t fullest = 0;
            for (std::size_t ring = 1; ring < rings_; ++ring)
                if (room(ring) < room(fullest)) fullest = ring;
            if (room(fullest) >= 0) return true;
            Exchange best;
            auto least = -room(fullest);  // tokens that lack room on the two rings
            for (std::size_t other = 0; other < rings_ && least > 0; ++other)
                if (room(other) > 0) look_for_room(fullest, other, least, best);
            for (std::size_t i = 0; i < rings_ && best.from == nobody && hand_overs < most_hand_overs; ++i)
                best = hand_over(fullest, hand_overs++ % rings_);
            if (best.from == nobody) return false;
            apply(best);
        }
    }

    /// An exchange after which another ring has too many tokens instead of this one. A ring of few documents, or of
    /// none as long as those where there is room, may have no fitting exchange where another ring has one.
    Exchange hand_over(std::size_t from, std::size_t to) const {
        Exchange best;
        auto least = 1 - room(from);
        if (to != from) look_for_room(from, to, least, best);
        return best;
    }
    static constexpr std::size_t most_hand_overs = 64;

    /// Finds the exchange that takes tokens from the first ring and after which the fewest tokens lack room on both, if
    /// they are fewer than `least`.
    void look_for_room(std::size_t from, std::size_t to, std::int64_t& least, Exchange& best) const {
        const auto over = -room(from), free = room(to);
        const auto taken = groups_of(to, true);
        for (const auto& given : groups_of(from, true)) {
            // It is best to shift between min(over, free) and max(over, free) tokens. The nearest below is looked at
            // too.
            auto at = std::ranges::lower_bound(taken, given.tokens - std::max(over, free), {}, &DocumentGroup::tokens);
            if (at != taken.begin()) --at;
            for (int looked_at = 0; looked_at < 2 && at != taken.end(); ++looked_at, ++at) {
                const auto shift = given.tokens - at->tokens;
                const auto lacking = std::max<std::int64_t>(0, over - shift) + std::max<std::int64_t>(0, shift - free);
                if (shift <= 0 || lacking >= least) continue;
                least = lacking;
                best = {from, to, given, *at};
            }
            if (least == 0) return;
        }
    }

    void balance() {
        constexpr int most_exchanges = 100;
        for (int i = 0; i < most_exchanges; ++i) {
            std::size_t slowest = 0;
            for (std::size_t ring = 1; ring < rings_; ++ring)
                if (time(ring) > time(slowest)) slowest = ring;
            Exchange best;
            auto least = (1 - least_gain) * time(slowest);
            const auto given = groups_of(slowest, false);
            for (std::size_t other = 0; other < rings_; ++other)
                if (other != slowest) look_for_time(slowest, other, given, least, best);
            if (best.from == nobody) return;
            apply(best);
        }
    }

    static constexpr double least_gain = 1e-4;

    /// Finds the exchange after which the slower of the two rings takes the least time, if it is less than `least`.
    void look_for_time(std::size_t from, std::size_t to, const std::vector<DocumentGroup>& all_given, double& least,
                       Exchange& best) const {
        constexpr std::ptrdiff_t most_looked_at = 32;  // for each that is given, at even distances
        const auto taken = groups_of(to, false);
        for (const auto& given : all_given) {
            const auto begin = std::ranges::lower_bound(taken, given.tokens - room(to), {}, &DocumentGroup::tokens);
            const auto end = std::ranges::upper_bound(taken, given.tokens + room(from), {}, &DocumentGroup::tokens);
            const auto step = std::max<std::ptrdiff_t>(1, (end - begin) / most_looked_at);
            for (std::ptrdiff_t i = 0; i < end - begin; i += step) {
                const auto& back = begin[i];
                const auto more = given.seconds - back.seconds;
                const auto slower = std::max(time(from, -more), time(to, more));
                if (slower >= least) continue;
                least = slower;
                best = {from, to, given, back};
            }
        }
    }

    std::span<const BatchDocument> documents_;
    const RingSet& set_;
    std::size_t rings_;
    std::vector<std::int64_t> tokens_;            // by ring
    std::vector<double> seconds_;                 // by ring
    std::vector<std::vector<std::size_t>> held_;  // by ring: its documents
};

}  // namespace

std::optional<Assignment> assign_documents(std::span<const BatchDocument> documents, const RingSet& rings) {
    require(!rings.ranks.empty(), "there is no ring to assign documents to");
    for (const auto ranks : rings.ranks) require(ranks > 0, "a ring has {} ranks; it must have at least 1", ranks);
    require(rings.slowdowns.empty() || rings.slowdowns.size() == rings.ranks.size(), "{} slowdowns for {} rings",
            rings.slowdowns.size(), rings.ranks.size());
    for (const auto& one : documents)
        require(one.tokens > 0, "a document has {} tokens; it must have at least 1", one.tokens);
    Assigner assigner(documents, rings);
    if (!assigner.run()) return {};
    return std::move(assigner).assignment();
}

}  // namespace ringlab::layouts
