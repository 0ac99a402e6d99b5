#include "gpu/team/team.hpp"
#include "processes/peers.hpp"

#include <atomic>

namespace ringlab::gpu {
namespace {

using processes::Session;

class MpiTeam : public Team {
public:
    int size() const override { return session_.size(); }
    int first_local() const override { return session_.rank(); }
    int local_size() const override { return 1; }

    std::vector<Bytes> all_gather(int, Bytes bytes, Clock::duration timeout) override {
        return peers_.all_gather(bytes, timeout);
    }
    std::vector<Bytes> gather_to_root(Bytes bytes, Clock::duration timeout) override {
        return peers_.gather_to_root(std::move(bytes), timeout);
    }

    void give_up(const std::string& why) override { session_.end(why); }

    Clock::duration clock_offset() const override { return clock_.ahead; }
    Clock::duration clock_uncertainty() const override { return clock_.uncertainty; }

    void cancel() noexcept override { cancelled_ = true; }
    bool cancelled() const noexcept override { return cancelled_; }

private:
    Session& session_ = Session::current();
    processes::Peers peers_{session_};
    const processes::ClockOffset clock_ = peers_.align_clock();
    std::atomic<bool> cancelled_ = false;
};

}  // namespace

std::unique_ptr<Team> make_mpi_team() { return std::make_unique<MpiTeam>(); }

}  // namespace ringlab::gpu
