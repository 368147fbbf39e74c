// Sizes, tables and blocks of pixels of one call; read-only once made, shared by all threads.
#pragma once
#include <algorithm>
#include <limits>
#include <vector>

#include "attend.h"
#include "dropout.h"
#include "tiles.h"

namespace gevit {

// LANES consecutive pixels of a plane, and the rows and columns of the neighbourhood that meet the image for any of
// them.
struct Block {
    int first, count;
    int row_begin, row_end, column_begin, column_end;
    int offsets() const { return (row_end - row_begin) * (column_end - column_begin); }
    bool same_offsets(const Block& other) const {
        return row_begin == other.row_begin && row_end == other.row_end && column_begin == other.column_begin &&
               column_end == other.column_end;
    }
};

inline int padded_to(int multiple, int count) { return (count + multiple - 1) / multiple * multiple; }

struct Problem {
    const int batch, channels, heads, outputs, queries, keys, height, width, neighborhood;
    const int space_rows, space_channels, element_rows, element_channels;
    const int in_channels, out_channels;  // of a layer
    const bool own;
    const int pair_queries;  // query elements that one output element meets
    const int pixels, threads;
    const int64_t query_stride, key_stride, value_stride;
    const int64_t tasks;       // a task is one head of one image
    const int64_t first_task;  // its place in the batch that dropout counts
    const Real scale;
    const bool drops;
    const Dropout dropout;
    std::vector<Int> row_of, column_of;  // of each pixel; the lanes past the last pixel lie far outside
    std::vector<Block> blocks;
    int most_offsets = 0;    // of a block
    int guard = 0;           // pixels before and after a padded plane that a shifted load may touch
    ptrdiff_t pitch = 0;

    explicit Problem(const gevit_shape& s)
        : batch(int(s.batch)), channels(int(s.channels)), heads(int(s.heads)), outputs(int(s.outputs)),
          queries(int(s.queries)), keys(int(s.keys)), height(int(s.height)), width(int(s.width)),
          neighborhood(int(s.neighborhood)), space_rows(int(s.space_rows)), space_channels(int(s.space_channels)),
          element_rows(s.element_channels ? int(s.element_rows) : 1), element_channels(int(s.element_channels)),
          in_channels(int(s.in_channels)),
          out_channels(int(s.out_channels)), own(s.own != 0), pair_queries(own ? 1 : queries), pixels(height * width),
          threads(int(std::max<int64_t>(1, s.threads))), query_stride(s.query_stride), key_stride(s.key_stride),
          value_stride(s.value_stride), tasks(s.batch * s.heads), first_task(s.first_image * s.heads),
          scale(Real(s.scale)), drops(s.dropout > 0),
          dropout(s.dropout, s.seed, outputs * pair_queries, keys, neighborhood * neighborhood) {
        const int lanes = padded_to(LANES, pixels), radius = neighborhood / 2;
        row_of.assign(lanes, -(1 << 20));
        column_of.assign(lanes, -(1 << 20));
        for (int first = 0; first < pixels; first += LANES) {
            Block block{first, std::min(LANES, pixels - first), neighborhood, 0, neighborhood, 0};
            for (int pixel = first; pixel < first + block.count; ++pixel) {
                const int row = pixel / width, column = pixel % width;
                block.row_begin = std::min(block.row_begin, std::max(0, radius - row));
                block.row_end = std::max(block.row_end, std::min(neighborhood, radius + height - row));
                block.column_begin = std::min(block.column_begin, std::max(0, radius - column));
                block.column_end = std::max(block.column_end, std::min(neighborhood, radius + width - column));
                row_of[pixel] = row, column_of[pixel] = column;
            }
            blocks.push_back(block);
            most_offsets = std::max(most_offsets, block.offsets());
        }
        guard = padded_to(LANES, std::min(radius, height - 1) * width + std::min(radius, width - 1));
        pitch = lanes + 2 * guard;
        if (pitch * sizeof(Real) % 512 == 0) pitch += LANES;  // planes a power of two apart would share cache sets
    }

    static bool sensible(const gevit_shape& s) {
        for (const int64_t size : {s.batch, s.channels, s.heads, s.outputs, s.queries, s.keys, s.height, s.width,
                                   s.space_rows, s.space_channels, s.element_rows, s.element_channels,
                                   s.in_channels, s.out_channels})
            if (size < 0 || size > std::numeric_limits<int32_t>::max()) return false;
        for (const int64_t size : {s.outputs, s.queries, s.keys, s.height, s.width, s.space_rows})
            if (size == 0) return false;
        return s.space_channels + s.element_channels == s.channels && s.neighborhood % 2 == 1 && s.neighborhood > 0 &&
               s.neighborhood < (1 << 15) && (!s.own || s.outputs == s.queries) && s.dropout >= 0 && s.dropout < 1 &&
               s.height * s.width < (1 << 28) && s.first_image >= 0;
    }

    int first_query(int output) const { return own ? output : 0; }
    int64_t pairs() const { return int64_t(outputs) * pair_queries; }
    // The order of the group where outputs, queries and keys are its elements and all of them meet; otherwise 0.
    int common_order() const { return outputs == queries && keys == queries && pair_queries == queries ? queries : 0; }

    // From one image to the next, in a contiguous tensor [batch, channels, heads, elements, pixels].
    int64_t stride(int elements) const { return int64_t(channels) * heads * elements * pixels; }

    // Where the plane of (task, channel, element) begins in such a tensor, of images so far apart.
    ptrdiff_t plane(int64_t task, int channel, int elements, int element, int64_t stride) const {
        const int64_t image = task / heads, head = task % heads;
        return image * stride + ((int64_t(channel) * heads + head) * elements + element) * pixels;
    }
};

// The numbers of elements. Of groups of the common orders they are constants, which makes short loops fast.
template <int Order>
struct Sizes {
    const Problem& p;
    int outputs() const { return Order ? Order : p.outputs; }
    int queries() const { return Order ? Order : p.queries; }
    int keys() const { return Order ? Order : p.keys; }
    int met() const { return Order ? Order : p.pair_queries; }
    bool own() const { return Order ? false : p.own; }  // of one element, it is all there are
    int first_query(int output) const { return own() ? output : 0; }
    int64_t pairs() const { return int64_t(outputs()) * met(); }
    // Where dropout finds the q-th query of output h, with key m and its neighbour.
    ptrdiff_t dropout_place(int q, int h, int m) const {
        return (ptrdiff_t(q) * outputs() + h) * ((keys() + 1) / 2) + m / 2;
    }
};

}  // namespace gevit
