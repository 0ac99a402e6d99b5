#include "gpu/baselines/cudnn.hpp"

#include "layouts/basics/require.hpp"

// A program built without cuDNN's headers.
namespace ringlab::gpu {

struct Cudnn::Library {};

Cudnn::Cudnn(const std::string&) : why_not_("built without the headers of cuDNN and cudnn-frontend") {}
Cudnn::~Cudnn() = default;

std::vector<TimedCall> Cudnn::calls(const layouts::Problem&, const layouts::Mask&) const { fail("{}", why_not_); }

}  // namespace ringlab::gpu
