#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

/// Who sees whom, said a second time: element by element, from the sentence that --list prints of a mask, without
/// anything of layouts/. A new mask is one more entry of the table in mask_oracles.cpp.
namespace ringlab::mask_oracles {

using Token = std::int64_t;
using Random = std::mt19937_64;

/// One mask with its arguments, over a sequence of so many tokens.
struct Term {
    std::function<bool(Token row, Token key)> sees = [](Token, Token) { return true; };  ///< padding or not
    std::function<bool(Token)> is_padding = [](Token) { return false; };
    Token sink = 0;  ///< first keys that it adds to what the masks joined to it show
};

using Arguments = std::function<std::string(Random&, Token tokens)>;
using MakeTerm = std::function<Term(const std::string& arguments, Token tokens)>;

struct Oracle {
    std::string sentence;  ///< of --list, from which the rest was written
    Arguments random_arguments;
    MakeTerm term;
};

/// By the masks' names.
const std::map<std::string, Oracle>& oracles();

/// Masks joined by '+': a pair is visible that all of them show, and sinks are added to that; see `sink` in
/// mask_oracles.cpp. Throws std::exception on text that is no mask.
class Joined {
public:
    Joined(const std::string& spec, Token tokens);

    bool sees(Token row, Token key) const;
    bool is_padding(Token token) const;

private:
    bool all_see(Token row, Token key) const;

    std::vector<Term> terms_;
    std::vector<Token> first_;  ///< by row: the first key that all terms show, padding or not
    Token sink_ = 0;
};

/// One to `most` masks with arguments that fit the tokens, joined.
std::string random_join(Random& random, Token tokens, int most);

/// One of each mask, with arguments that fit the tokens; the same ones in every run.
std::vector<std::string> mask_examples(Token tokens);

/// A uniform whole number of [low, high].
Token pick(Random& random, Token low, Token high);

}  // namespace ringlab::mask_oracles
