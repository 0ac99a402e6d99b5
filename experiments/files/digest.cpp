#include "experiments/files/digest.hpp"

#include "layouts/basics/require.hpp"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <memory>
#include <sstream>
#include <system_error>
#include <vector>

namespace ringlab::experiments {
namespace {

std::string digest_from(std::istream& bytes) {
    const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
    bool done = context && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr);
    std::vector<char> buffer(1 << 16);
    while (bytes.good()) {
        bytes.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
        done = done && EVP_DigestUpdate(context.get(), buffer.data(), static_cast<std::size_t>(bytes.gcount()));
    }
    std::array<unsigned char, 32> digest{};
    require(done && EVP_DigestFinal_ex(context.get(), digest.data(), nullptr), "OpenSSL computes no SHA-256 here");
    std::string text;
    for (const auto byte : digest) text += fmt::format("{:02x}", byte);
    return text;
}

}  // namespace

std::string digest_of(const std::string& bytes) {
    std::istringstream stream(bytes);
    return digest_from(stream);
}

std::string digest_of_file(const std::filesystem::path& path) {
    errno = 0;
    std::ifstream file(path, std::ios::binary);
    require(file.good(), "cannot open {}: {}", path.string(), std::generic_category().message(errno));
    auto digest = digest_from(file);
    require(file.eof(), "cannot read {}: {}", path.string(), std::generic_category().message(errno));
    return digest;
}

}  // namespace ringlab::experiments
