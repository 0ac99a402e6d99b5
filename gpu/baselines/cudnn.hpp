#pragma once

#include "gpu/baselines/timed_call.hpp"
#include "layouts/masks/mask.hpp"
#include "layouts/problem/problem.hpp"

#include <memory>
#include <string>
#include <vector>

namespace ringlab::gpu {

/// cuDNN's attention on one device, for comparison with our own. The library is loaded at run time. In a program built
/// without the headers of cuDNN and its frontend it is not available, with that reason.
class Cudnn {
public:
    /// `path` names the library, or is empty for the system's. Where there is none available() is false.
    explicit Cudnn(const std::string& path);
    ~Cudnn();

    bool available() const { return why_not_.empty(); }
    const std::string& why_not() const { return why_not_; }
    const std::string& version() const { return version_; }  ///< "9.19.0"; "none"

    /// "cudnn_forward" and "cudnn_backward" on the current device, on normal numbers in memory of their own: o and lse
    /// in the problem's dtype and fp32, gradients in the problem's dtype. Valid while this object and the calls live.
    /// Throws Error with the library's reason where it cannot do the problem, and for masks that it has no word for:
    /// it knows full, causal and causal windows.
    std::vector<TimedCall> calls(const layouts::Problem& problem, const layouts::Mask& mask) const;

private:
    struct Library;
    std::unique_ptr<Library> library_;
    std::string version_ = "none", why_not_;
};

}  // namespace ringlab::gpu
