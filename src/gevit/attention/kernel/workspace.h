// One thread's scratch memory, and how the block of pixels it holds gets in and out of the tensors.
#pragma once
#include <algorithm>
#include <memory>
#include <new>

#include "problem.h"

namespace gevit {

struct Layer {
    const Real *signal, *weight, *bias, *out_weight, *out_bias;
};

struct Inputs {
    const Real *query, *key, *value;  // or, where these are null, a layer that makes them
    const Layer* layer;
    const Real *space, *element;
    const int32_t *offset_index, *element_index;
};

// The planes of one head of one image, wherever they are.
template <class Number>
struct View {
    Number* data;
    ptrdiff_t next_channel, next_element;
    Number* at(int channel, int element) const { return data + channel * next_channel + element * next_element; }
    template <class Const, class = std::enable_if_t<std::is_same_v<Const, const Number>>>
    operator View<Const>() const {
        return {data, next_channel, next_element};
    }
};

// Layouts, innermost last:
//   content (C) [m][j][h~]    space (S) [u][h~]    element (R) [e][h~]    total, share (A) [m / KEYS][h~][h][m % KEYS]
//   weight (W) [m][j][h]
class Workspace {
  public:
    Workspace(const Problem& problem, const Inputs& inputs, bool backward)
        : p_(problem), in_(inputs), backward_(backward) {
        size_t bytes = 0;
        lay_out([&](auto*&, size_t size) { bytes += size; });
        memory_.reset(new (std::align_val_t(64), std::nothrow) char[bytes]);
        char* next = memory_.get();
        if (usable())
            lay_out([&](auto*& array, size_t size) {
                array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(next);
                next += size;
            });
        if (usable()) clear(key_), clear(value_);  // once: what surrounds the pixels stays zero
        table_norm_ = std::max(largest_norm(in_.space, p_.space_rows, p_.space_channels),
                               largest_norm(in_.element, p_.element_rows, p_.element_channels));
    }

    bool usable() const { return memory_ != nullptr; }

    // Sums over everything but lanes of the gradients of the two tables, [u][channel] and [e][channel].
    Vec *space_table_gradient, *element_table_gradient;

  protected:
    // Calls place(array, bytes) for every array of the scratch memory.
    template <class Place>
    void lay_out(Place&& place) {
        const size_t offsets = p_.most_offsets;
        const size_t pairs = p_.pairs() * padded_to(KEYS, p_.keys), spaces = size_t(p_.space_rows) * p_.queries;
        const size_t elements = size_t(p_.element_rows) * p_.queries, queries = size_t(p_.channels) * p_.queries;
        const size_t contents = p_.keys * offsets * p_.queries, weights = p_.keys * offsets * p_.outputs;
        // Sizes are often multiples of 4096, and a load waits for a store that far away: a few lines keep arrays apart.
        constexpr size_t LINE = 64, APART = 5 * LINE;
        const auto array = [&](auto*& pointer, size_t count) {
            place(pointer, (count * sizeof *pointer + LINE - 1) / LINE * LINE + APART);
        };
        // Of each element query, key and value lie side by side, so that the maps of a layer take them together.
        const auto side_by_side = [&](std::initializer_list<Planes*> sets, int elements, bool needed) {
            const ptrdiff_t next_set = p_.channels * p_.pitch, next_element = next_set * ptrdiff_t(sets.size());
            Real* data = (*sets.begin())->data;
            array(data, needed ? size_t(next_element) * elements : 0);
            for (Planes* each : sets) {
                *each = {data, p_.pitch, next_element, elements, p_.channels};
                data += next_set;
            }
        };
        if (in_.layer) {
            side_by_side({&queries_, &key_, &value_}, p_.keys, true);
            side_by_side({&query_gradients_, &key_gradient_, &value_gradient_}, p_.keys, backward_);
            side_by_side({&out_gradients_}, p_.outputs, backward_);
        } else {
            side_by_side({&key_, &value_}, p_.keys, true);
            side_by_side({&key_gradient_, &value_gradient_}, p_.keys, backward_);
        }
        const size_t maps = in_.layer ? 3 * size_t(p_.channels) : 0;
        array(weight_of_head_, maps * p_.in_channels), array(bias_of_head_, maps);
        const size_t transposed = backward_ ? maps : 0;
        array(weight_transposed_, transposed * p_.in_channels);
        array(out_weight_transposed_, transposed / 3 * p_.out_channels);
        array(ones_, transposed ? p_.pixels : 0);
        array(sums_, transposed * std::max({p_.in_channels, p_.out_channels, 1}));
        array(offset_, offsets), array(distance_, offsets), array(space_at_, offsets * p_.outputs);
        array(inside_, offsets), array(noise_, offsets), array(place_, p_.drops ? p_.dropout.places() : 0);
        array(query_, queries), array(out_, size_t(p_.channels) * p_.outputs);
        array(content_, contents), array(space_, spaces), array(element_, elements);
        array(total_, pairs), array(share_, pairs), array(weight_, weights), array(joint_, p_.keys * offsets);
        if (!backward_) return;
        array(query_gradient_, queries), array(weight_gradient_, weights), array(content_gradient_, contents);
        array(space_gradient_, spaces), array(element_gradient_, elements), array(share_gradient_, pairs);
        array(space_table_gradient, size_t(p_.space_rows) * p_.space_channels);
        array(element_table_gradient, size_t(p_.element_rows) * p_.element_channels);
    }

    void clear(const Planes& planes) {
        for (int key = 0; key < planes.keys; ++key)
            std::fill_n(planes.at(key, 0), planes.channels * planes.pitch, Real(0));
    }

    // Squared lengths of the longest vector: of the keys of a task, of a table.
    Real largest_norm(const Planes& planes) const {
        Vec largest = {};
        for (int key = 0; key < planes.keys; ++key)
            for (ptrdiff_t pixel = 0; pixel < planes.pitch; pixel += LANES) {
                Vec norm = {};
                for (int channel = 0; channel < planes.channels; ++channel) {
                    const Vec x = load(planes.at(key, channel) + pixel);
                    norm += x * x;
                }
                largest = larger(norm, largest);
            }
        Real most = 0;
        for (int lane = 0; lane < LANES; ++lane) most = std::max(most, largest[lane]);
        return most;
    }

    static Real largest_norm(const Real* table, int rows, int channels) {
        Real largest = 0;
        for (int row = 0; row < rows; ++row, table += channels) {
            Real norm = 0;
            for (int channel = 0; channel < channels; ++channel) norm += table[channel] * table[channel];
            largest = std::max(largest, norm);
        }
        return largest;
    }

    // Whether some part of a score of the block may be larger than this, by Cauchy and Schwarz.
    bool scores_may_exceed(Real bound) const {
        const Real longest = std::max(key_norm_, table_norm_);
        IntVec fine = ~IntVec{};
        for (int row = 0; row < p_.queries; ++row) {
            Vec norm = {};
            for (int channel = 0; channel < p_.channels; ++channel) {
                const Vec x = query_[channel * p_.queries + row];
                norm += x * x;
            }
            fine &= norm * longest <= splat(bound * bound);
        }
        return any(~fine);
    }

    Planes moved(Planes planes) const {
        planes.data += p_.guard + block_.first;
        return planes;
    }

    void read(View<const Real> from, int rows, Real factor, Vec* to) const {
        for (int channel = 0; channel < p_.channels; ++channel)
            for (int row = 0; row < rows; ++row) {
                const Real* at = from.at(channel, row) + block_.first;
                to[channel * rows + row] = factor * load(at, block_.count);
                __builtin_prefetch(at + 2 * LANES);  // for the next block: no hardware follows so many planes
            }
    }

    void write(const Vec* from, int rows, Real factor, View<Real> to) const {
        for (int channel = 0; channel < p_.channels; ++channel)
            for (int row = 0; row < rows; ++row) {
                Real* at = to.at(channel, row) + block_.first;
                store(at, factor * from[channel * rows + row], block_.count);
                __builtin_prefetch(at + 2 * LANES, 1);
            }
    }

    Shifts shifts() const { return {distance_, offsets_}; }

    // Reads the queries of a block, times scale, and says which lanes have a neighbour in the image at each offset.
    template <bool Dropped>
    void enter(int64_t task, const Block& block) {
        if (!block.same_offsets(block_)) list_offsets(block);
        block_ = block;
        IntVec row, column;
        std::memcpy(&row, &p_.row_of[block.first], sizeof row);
        std::memcpy(&column, &p_.column_of[block.first], sizeof column);
        present_ = row >= 0;
        const int radius = p_.neighborhood / 2, rows = block.row_end - block.row_begin;
        for (int a = 0; a < rows; ++a) {  // of the first column, by rows alone
            const IntVec y = row + (block.row_begin + a - radius);
            inside_[a] = (y >= 0) & (y < p_.height);
        }
        for (int b = block.column_end; b-- > block.column_begin;) {  // the first column last: the others read it
            const IntVec x = column + (b - radius), column_inside = (x >= 0) & (x < p_.width);
            IntVec* const inside = inside_ + (b - block.column_begin) * rows;
            for (int a = 0; a < rows; ++a) inside[a] = inside_[a] & column_inside;
        }
        if constexpr (Dropped) {
            const Dropout::Pixels pixels = p_.dropout.pixels(uint32_t(p_.first_task + task), uint32_t(block.first));
            for (int j = 0; j < offsets_; ++j) noise_[j] = p_.dropout.offset(pixels, offset_[j]);
            for (int i = 0; i < p_.dropout.places(); ++i) place_[i] = p_.dropout.place(pixels, i);
        }
        read(query_of_task_, p_.queries, p_.scale, query_);
    }

    // Lists the offsets that meet the image, column by column: neighbours in the list are a row of pixels apart, so
    // that scatter does not load what it has just stored.
    void list_offsets(const Block& block) {
        const int radius = p_.neighborhood / 2;
        offsets_ = block.offsets();
        int j = 0;
        for (int b = block.column_begin; b < block.column_end; ++b)
            for (int a = block.row_begin; a < block.row_end; ++a, ++j) {
                offset_[j] = a * p_.neighborhood + b;
                distance_[j] = (a - radius) * p_.width + b - radius;
            }
        for (int h = 0; h < p_.outputs; ++h)
            for (j = 0; j < offsets_; ++j)
                space_at_[h * offsets_ + j] =
                    in_.offset_index[ptrdiff_t(h) * p_.neighborhood * p_.neighborhood + offset_[j]] * p_.queries;
    }

    static void zero(Vec* data, ptrdiff_t count) { std::memset(data, 0, count * sizeof(Vec)); }

    struct Release {
        void operator()(char* memory) const { ::operator delete[](memory, std::align_val_t(64)); }
    };

    const Problem& p_;
    const Inputs in_;
    const bool backward_;
    std::unique_ptr<char[], Release> memory_;
    Planes key_{}, value_{}, key_gradient_{}, value_gradient_{};
    Planes queries_{}, query_gradients_{}, out_gradients_{};  // of a layer
    View<const Real> query_of_task_{};
    // The part of the layer's maps that belongs to a head, [query, key, value][channel][in] and the like.
    Real *weight_of_head_, *weight_transposed_, *bias_of_head_, *out_weight_transposed_, *ones_;
    Vec* sums_;  // for the gradients of the maps
    Real key_norm_, table_norm_;  // squared lengths of the longest key of the task and of the longest learned vector
    Block block_{};
    int offsets_;         // of the block
    bool small_, small_positions_;  // no content score, no other part of one, of the task's blocks so far is large
    IntVec present_;      // lanes that hold a pixel
    // Of offset j in the block's list: its number in the neighbourhood, how far away its pixel is; [h][j]: where S is.
    int *offset_, *distance_, *space_at_;
    IntVec* inside_;             // of offset j: lanes whose neighbour is in the image
    Dropout::Offset* noise_;     // of offset j, and of places: what dropout is made of
    BitVec* place_;
    Vec *query_, *out_, *content_, *space_, *element_, *total_, *share_, *weight_, *joint_;
    Vec *query_gradient_, *weight_gradient_, *content_gradient_, *space_gradient_, *element_gradient_, *share_gradient_;
};

}  // namespace gevit
