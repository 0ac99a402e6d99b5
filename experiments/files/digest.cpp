#include "experiments/files/digest.hpp"

#include "layouts/basics/require.hpp"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <memory>
#include <system_error>
#include <vector>

namespace ringlab::experiments {
namespace {

class Sha256 {
public:
    Sha256() { require_done(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr)); }

    void update(std::string_view bytes) { require_done(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size())); }

    std::string text() {
        std::array<unsigned char, 32> digest{};
        require_done(EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr));
        std::string text;
        for (const auto byte : digest) text += fmt::format("{:02x}", byte);
        return text;
    }

private:
    static void require_done(bool done) { require(done, "OpenSSL computes no SHA-256 here"); }

    std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_{EVP_MD_CTX_new(), EVP_MD_CTX_free};
};

}  // namespace

std::string digest_of(std::string_view bytes) {
    Sha256 hash;
    hash.update(bytes);
    return hash.text();
}

std::string digest_of_file(const std::filesystem::path& path) {
    errno = 0;
    std::ifstream file(path, std::ios::binary);
    require(file.good(), "cannot open {}: {}", path.string(), std::generic_category().message(errno));
    Sha256 hash;
    std::vector<char> buffer(1 << 16);
    while (file.good()) {
        file.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
        hash.update({buffer.data(), static_cast<std::size_t>(file.gcount())});
    }
    require(file.eof(), "cannot read {}: {}", path.string(), std::generic_category().message(errno));
    return hash.text();
}

}  // namespace ringlab::experiments
