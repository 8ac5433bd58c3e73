// SPDX-License-Identifier: Apache-2.0
// attention: out[b,i,h*dv+d] = sum_j softmax_j(score(q.k, b, h, i, j)) v[b,j,h'*dv+d], h' = h /
// (heads / kv_heads). q [batch, queries, heads*d], k [batch, keys, kv_heads*d], v [batch, keys,
// kv_heads*dv], out like q with dv; a token's row begins q_stride (k_stride, ...) elements after
// the one before.
//
// A work item is (b, h, block of block_m queries). Keys are taken block_n at a time, live ones
// only, with an online softmax in f32. Dead keys, keys past the diagonal and keys outside of a
// block's window are never read, nor are rows past the ends. A row without a visible key gives
// zeros.
//
// Many queries run in vector lanes throughout: q is transposed once, rows of k and v are read as
// they lie, one element broadcast at a time, and maxima and sums of the softmax need no shuffles.
// Of few, as in a step of a decoder, most lanes would be idle: there keys run in the lanes of
// scores (k is transposed in registers) and features in those of values. Both add in one order, so
// a row's bits do not depend on how many there are.
#pragma once

#include "expr.h"

/// For attentions without such a condition.
struct AllVisible {
  TFCC_FN bool operator()(idx, idx, idx, idx) const { return true; }
};
struct AllLive {
  TFCC_FN bool operator()(idx, idx) const { return true; }
};
struct NoScore {
  TFCC_FN f32 operator()(f32 s, idx, idx, idx, idx) const { return s; }
};
struct NoSink {
  TFCC_FN f32 operator()(idx, idx) const { return -kInf; }
};

/// What a row is multiplied by whose largest score is `top` and whose weights come to `total`, with
/// that of a sink; 0 without a visible key.
TFCC_FN f32 row_scale(f32 total, f32 top, f32 sink) {
  if (top == -kInf) return 0.0f;
  if (sink != -kInf) total += fexp(sink - top);
  return total == 0.0f ? 0.0f : 1.0f / total;
}

/// Shapes that follow from Spec: a group of queries is as many vectors as the micro-kernels keep in
/// registers.
template <class Spec> struct AttentionTile {
  static constexpr int block_m = Spec::block_m, block_n = Spec::block_n;
  static constexpr int d = Spec::head_dim, dv = Spec::v_dim;
  static constexpr int group = block_m < 2 * kLanes ? block_m : 2 * kLanes;
  static constexpr int vectors = group / kLanes;
  static constexpr int rows = kLanes == 16 ? 8 : 4;  // rows of k, or columns of v, at a time
  static_assert(block_m % group == 0 && group % kLanes == 0, "block_m is 16, 32, 64 or 128");
  static_assert(Spec::heads % Spec::kv_heads == 0, "each key head serves as many query heads");
};

typedef f32 Lanes __attribute__((vector_size(kLanes * 4)));

/// scores[r, i] = q[i] . k[r] for `kRows` rows of k and one group of queries; q is [d, block_m],
/// scores [.., block_m].
template <class Spec, int kRows, class T>
TFCC_FN void score_rows(const f32* q, const T* const* k, f32* scores) {
  using Tile = AttentionTile<Spec>;
  Lanes sum[kRows][Tile::vectors] = {};
  const T* row[kRows];
  for (int r = 0; r < kRows; ++r) row[r] = k[r];
#pragma clang loop unroll_count(2)
  for (int c = 0; c < Tile::d; ++c) {
    Lanes x[Tile::vectors];
    for (int u = 0; u < Tile::vectors; ++u)
      x[u] = *(const Lanes*)(q + c * Tile::block_m + u * kLanes);
    for (int r = 0; r < kRows; ++r) {
      f32 y = load(row[r], c);
      for (int u = 0; u < Tile::vectors; ++u) sum[r][u] += x[u] * y;
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int u = 0; u < Tile::vectors; ++u)
      *(Lanes*)(scores + r * Tile::block_m + u * kLanes) = sum[r][u];
  }
}

/// acc[c, i] = acc[c, i] * keep[i] + sum_j p[j, i] v[j, c] for `kColumns` columns from `c0` on and
/// one group of queries.
template <class Spec, int kColumns, class T>
TFCC_FN void add_values(int keys, const f32* p, const T* const* v, int c0, const f32* keep,
                        f32* acc) {
  using Tile = AttentionTile<Spec>;
  Lanes sum[kColumns][Tile::vectors];
  for (int c = 0; c < kColumns; ++c) {
    for (int u = 0; u < Tile::vectors; ++u) {
      sum[c][u] = *(const Lanes*)(acc + c * Tile::block_m + u * kLanes) *
                  *(const Lanes*)(keep + u * kLanes);
    }
  }
  for (int j = 0; j < keys; ++j) {
    Lanes x[Tile::vectors];
    for (int u = 0; u < Tile::vectors; ++u)
      x[u] = *(const Lanes*)(p + j * Tile::block_m + u * kLanes);
    for (int c = 0; c < kColumns; ++c) {
      f32 y = load(v[j], c0 + c);
      for (int u = 0; u < Tile::vectors; ++u) sum[c][u] += x[u] * y;
    }
  }
  for (int c = 0; c < kColumns; ++c) {
    for (int u = 0; u < Tile::vectors; ++u)
      *(Lanes*)(acc + c * Tile::block_m + u * kLanes) = sum[c][u];
  }
}

/// A block of live keys.
template <class Spec> struct AttentionKeys {
  const typename Spec::T* k[Spec::block_n];
  const typename Spec::T* v[Spec::block_n];
  idx key[Spec::block_n];
};

/// The running state of a block of queries in lanes.
template <class Spec> struct ManyQueries : AttentionKeys<Spec> {
  using Tile = AttentionTile<Spec>;
  alignas(64) f32 q[Tile::d * Tile::block_m];
  alignas(64) f32 acc[Tile::dv * Tile::block_m];
  alignas(64) f32 scores[Tile::block_n * Tile::block_m];
  alignas(64) f32 largest[Tile::block_m];
  alignas(64) f32 sum[Tile::block_m];
  alignas(64) f32 keep[Tile::block_m];
  int rows;    // queries of this block
  int active;  // these, rounded up to whole groups

  TFCC_FN void begin(const typename Spec::T* from, int count) {
    constexpr int m = Spec::block_m;
    rows = count;
    active = (rows + Tile::group - 1) / Tile::group * Tile::group;
    for (int c = 0; c < Tile::d; ++c) {
      for (int i = 0; i < m; ++i)
        q[c * m + i] = i < rows ? load(from, i * Spec::q_stride + c) : 0.0f;
    }
    for (int t = 0; t < Tile::dv * m; ++t) acc[t] = 0.0f;
    for (int i = 0; i < m; ++i) largest[i] = -kInf, sum[i] = 0.0f;
  }

  /// Each score of the block becomes change(score, query of the block, place of the key).
  template <class Change> TFCC_FN void change_scores(int keys, const Change& change) {
    constexpr int m = Spec::block_m;
    for (int t = 0; t < keys; ++t) {
      f32* row = scores + t * m;
#pragma clang loop vectorize(assume_safety)
      for (int i = 0; i < rows; ++i) row[i] = change(row[i], i, t);
      for (int i = rows; i < m; ++i) row[i] = -kInf;
    }
  }

  TFCC_FN void finish(typename Spec::T* to, f32 sink) {
    for (int i = 0; i < Spec::block_m; ++i) keep[i] = row_scale(sum[i], largest[i], sink);
    for (int i = 0; i < rows; ++i) {
      for (int c = 0; c < Tile::dv; ++c)
        store(to, i * Spec::out_stride + c, acc[c * Spec::block_m + i] * keep[i]);
    }
  }
};

/// Dot products of all queries with `keys` rows of k.
template <class Spec> TFCC_FN void attention_products(ManyQueries<Spec>& s, int keys) {
  using Tile = AttentionTile<Spec>;
  for (int g = 0; g < s.active; g += Tile::group) {
    int j = 0;
    for (; j + Tile::rows <= keys; j += Tile::rows) {
      score_rows<Spec, Tile::rows>(s.q + g, s.k + j, s.scores + j * Tile::block_m + g);
    }
    for (; j < keys; ++j) score_rows<Spec, 1>(s.q + g, s.k + j, s.scores + j * Tile::block_m + g);
  }
}

/// Scores become probabilities relative to the new maxima; keep[i] is what older ones must be
/// multiplied by.
template <class Spec> TFCC_FN void attention_softmax(ManyQueries<Spec>& s, int keys) {
  constexpr int m = Spec::block_m;
  alignas(64) f32 base[m];
  for (int i = 0; i < m; ++i) base[i] = s.largest[i];
  for (int j = 0; j < keys; ++j) {
    for (int i = 0; i < m; ++i)
      base[i] = s.scores[j * m + i] > base[i] ? s.scores[j * m + i] : base[i];
  }
  for (int i = 0; i < m; ++i) {
    f32 top = base[i];
    base[i] = top == -kInf ? 0.0f : top;  // nothing visible yet: e^(-inf - 0) is 0, and no NaN
    s.keep[i] = fexp(s.largest[i] - base[i]);
    s.largest[i] = top;
    s.sum[i] *= s.keep[i];
  }
  for (int j = 0; j < keys; ++j) {
    for (int i = 0; i < m; ++i) {
      f32 p = fexp(s.scores[j * m + i] - base[i]);
      s.scores[j * m + i] = p;
      s.sum[i] += p;
    }
  }
}

/// acc = acc * keep + p v.
template <class Spec> TFCC_FN void attention_values(ManyQueries<Spec>& s, int keys) {
  using Tile = AttentionTile<Spec>;
  constexpr int kWhole = Tile::dv / Tile::rows * Tile::rows;
  for (int g = 0; g < s.active; g += Tile::group) {
    for (int c = 0; c < kWhole; c += Tile::rows) {
      add_values<Spec, Tile::rows>(keys, s.scores + g, s.v, c, s.keep + g,
                                   s.acc + c * Tile::block_m + g);
    }
    if constexpr (kWhole < Tile::dv) {
      add_values<Spec, Tile::dv - kWhole>(keys, s.scores + g, s.v, kWhole, s.keep + g,
                                          s.acc + kWhole * Tile::block_m + g);
    }
  }
}

template <int... I> struct Places {};
template <int N, int... I> struct PlacesTo : PlacesTo<N - 1, N - 1, I...> {};
template <int... I> struct PlacesTo<0, I...> { typedef Places<I...> Type; };

/// Exchanges the blocks beside the diagonal of rows a and b, kSize columns wide.
template <int kSize, int... I> TFCC_FN void exchange(Lanes& a, Lanes& b, Places<I...>) {
  const Lanes upper = __builtin_shufflevector(a, b, ((I & kSize) ? kLanes + (I ^ kSize) : I)...);
  b = __builtin_shufflevector(a, b, ((I & kSize) ? kLanes + I : I ^ kSize)...);
  a = upper;
}

/// rows[i][j] becomes rows[j][i].
template <int kSize = 1> TFCC_FN void transpose(Lanes* rows) {
  if constexpr (kSize < kLanes) {
    for (int i = 0; i < kLanes; ++i) {
      if ((i & kSize) == 0)
        exchange<kSize>(rows[i], rows[i | kSize], typename PlacesTo<kLanes>::Type());
    }
    transpose<2 * kSize>(rows);
  }
}

typedef f32 LanesAnywhere __attribute__((vector_size(kLanes * 4), aligned(4)));

/// The running state of few queries, each in a row of its own. f32 alone.
template <class Spec> struct FewQueries : AttentionKeys<Spec> {
  static constexpr int most = 8;
  static constexpr int d = Spec::head_dim, dv = Spec::v_dim, block_n = Spec::block_n;
  static constexpr int whole_d = d / kLanes * kLanes, whole_dv = dv / kLanes * kLanes;
  static constexpr int stride = (block_n + kLanes - 1) / kLanes * kLanes;  // of scores
  alignas(64) f32 q[most * d];
  alignas(64) f32 acc[most * dv];
  alignas(64) f32 scores[most * stride];
  f32 largest[most], sum[most], keep[most];
  int rows;

  TFCC_FN void begin(const f32* from, int count) {
    rows = count;
    for (int i = 0; i < rows; ++i) {
      for (int c = 0; c < d; ++c) q[i * d + c] = from[i * Spec::q_stride + c];
      for (int c = 0; c < dv; ++c) acc[i * dv + c] = 0.0f;
      largest[i] = -kInf, sum[i] = 0.0f;
    }
  }

  /// Keys in lanes; the places behind the last key repeat it.
  TFCC_FN void products(int keys) {
    for (int j = 0; j < keys; j += kLanes) {
      const f32* row[kLanes];
      for (int l = 0; l < kLanes; ++l) row[l] = this->k[j + l < keys ? j + l : keys - 1];
      Lanes sums[most] = {};
      for (int c = 0; c < whole_d; c += kLanes) {
        Lanes x[kLanes];
        for (int l = 0; l < kLanes; ++l) x[l] = *(const LanesAnywhere*)(row[l] + c);
        transpose(x);
        for (int i = 0; i < rows; ++i) {
          for (int e = 0; e < kLanes; ++e) sums[i] += x[e] * q[i * d + c + e];
        }
      }
      for (int c = whole_d; c < d; ++c) {
        Lanes x;
        for (int l = 0; l < kLanes; ++l) x[l] = row[l][c];
        for (int i = 0; i < rows; ++i) sums[i] += x * q[i * d + c];
      }
      for (int i = 0; i < rows; ++i) *(Lanes*)(scores + i * stride + j) = sums[i];
    }
  }

  template <class Change> TFCC_FN void change_scores(int keys, const Change& change) {
    for (int i = 0; i < rows; ++i) {
      f32* row = scores + i * stride;
#pragma clang loop vectorize(assume_safety)
      for (int t = 0; t < keys; ++t) row[t] = change(row[t], i, t);
      for (int t = keys; t < stride; ++t) row[t] = -kInf;
    }
  }

  /// As attention_softmax(): sums in the order of the keys; those that are not there add 0.
  TFCC_FN void softmax(int keys) {
    for (int i = 0; i < rows; ++i) {
      f32* row = scores + i * stride;
      f32 top = largest[i];
      for (int t = 0; t < stride; ++t) top = row[t] > top ? row[t] : top;
      const f32 base = top == -kInf ? 0.0f : top;
      keep[i] = fexp(largest[i] - base);
      largest[i] = top;
      for (int t = 0; t < stride; ++t) row[t] = fexp(row[t] - base);
      f32 all = sum[i] * keep[i];
      for (int t = 0; t < keys; ++t) all += row[t];
      sum[i] = all;
    }
  }

  /// Features in lanes.
  TFCC_FN void values(int keys) {
    for (int i = 0; i < rows; ++i) {
      const f32* p = scores + i * stride;
      f32* to = acc + i * dv;
      columns<whole_dv / kLanes>(keys, p, keep[i], to);
      for (int c = whole_dv; c < dv; ++c) {
        f32 x = to[c] * keep[i];
        for (int j = 0; j < keys; ++j) x += p[j] * this->v[j][c];
        to[c] = x;
      }
    }
  }

  TFCC_FN void finish(f32* to, f32 sink) {
    for (int i = 0; i < rows; ++i) {
      const f32 scale = row_scale(sum[i], largest[i], sink);
      for (int c = 0; c < dv; ++c) to[i * Spec::out_stride + c] = acc[i * dv + c] * scale;
    }
  }

 private:
  static constexpr int kAtOnce = 4;  // vectors of sums in registers

  template <int kVectors> TFCC_FN void columns(int keys, const f32* p, f32 older, f32* to) {
    for (int begin = 0; begin < kVectors; begin += kAtOnce) {
      const int count = kVectors - begin < kAtOnce ? kVectors - begin : kAtOnce;
      const int first = begin * kLanes;
      if (count == kAtOnce) add<kAtOnce>(keys, p, older, to, first);
      else if constexpr (kVectors % kAtOnce != 0)
        add<kVectors % kAtOnce>(keys, p, older, to, first);
    }
  }

  template <int kCount> TFCC_FN void add(int keys, const f32* p, f32 older, f32* to, int first) {
    Lanes x[kCount];
    for (int u = 0; u < kCount; ++u)
      x[u] = *(const LanesAnywhere*)(to + first + u * kLanes) * older;
    for (int j = 0; j < keys; ++j) {
      for (int u = 0; u < kCount; ++u)
        x[u] += *(const LanesAnywhere*)(this->v[j] + first + u * kLanes) * p[j];
    }
    for (int u = 0; u < kCount; ++u) *(LanesAnywhere*)(to + first + u * kLanes) = x[u];
  }
};

template <class Spec> TFCC_FN void attention_products(FewQueries<Spec>& s, int keys) {
  s.products(keys);
}
template <class Spec> TFCC_FN void attention_softmax(FewQueries<Spec>& s, int keys) {
  s.softmax(keys);
}
template <class Spec> TFCC_FN void attention_values(FewQueries<Spec>& s, int keys) {
  s.values(keys);
}

/// Where the rows of a sequence lie: all have as many, one sequence behind the other.
struct PaddedRows {
  static constexpr bool packed = false;
  idx queries, keys;
  TFCC_FN idx sequence(idx place) const { return place; }
  TFCC_FN idx query_count(idx) const { return queries; }
  TFCC_FN idx key_count(idx) const { return keys; }
  TFCC_FN idx first_query(idx b) const { return b * queries; }
  /// Where the row of key j of a key head begins, of `width` elements; tokens are `stride` apart.
  TFCC_FN idx key_row(idx b, idx head, idx j, idx stride, idx width) const {
    return (b * keys + j) * stride + head * width;
  }
  TFCC_FN idx position(idx, idx row) const { return row; }
  TFCC_FN idx key_position(idx, idx j) const { return j; }
  /// The keys that rows [first, last] may see, if a row sees those from `left` before its place to
  /// `right` behind it (-1: all).
  TFCC_FN idx keys_end(idx, idx, idx last, idx right) const {
    return right >= 0 ? imin(keys, last + 1 + keys - queries + right) : keys;
  }
  TFCC_FN idx keys_begin(idx, idx first, idx, idx left) const {
    return left >= 0 ? imax(0, first + keys - queries - left) : 0;
  }
  TFCC_FN idx diagonal() const { return keys - queries; }
};
/// Rows that a pack left (ir/ops.md): each sequence has its own number, keys first, in order; `pos`
/// is where a row stood.
struct PackedRows {
  static constexpr bool packed = true;
  const i32 *cu, *keys, *order, *pos;
  TFCC_FN idx sequence(idx place) const { return order[place]; }
  TFCC_FN idx query_count(idx b) const { return cu[b + 1] - cu[b]; }
  TFCC_FN idx key_count(idx b) const { return keys[b]; }
  TFCC_FN idx first_query(idx b) const { return cu[b]; }
  TFCC_FN idx key_row(idx b, idx head, idx j, idx stride, idx width) const {
    return (cu[b] + j) * stride + head * width;
  }
  TFCC_FN idx position(idx b, idx row) const { return pos[cu[b] + row]; }
  TFCC_FN idx key_position(idx b, idx j) const { return pos[cu[b] + j]; }
  // Packing brings rows nearer to each other, so that a window of packed rows holds that of
  // positions; rows behind the keys stand anywhere.
  TFCC_FN idx keys_end(idx b, idx, idx last, idx right) const {
    return right >= 0 && last < keys[b] ? imin(keys[b], last + 1 + right) : keys[b];
  }
  TFCC_FN idx keys_begin(idx b, idx first, idx last, idx left) const {
    return left >= 0 && last < keys[b] ? imax(0, first - left) : 0;
  }
  TFCC_FN idx diagonal() const { return 0; }
};
/// Queries as PackedRows, their positions rising in a sequence; keys in pages of a cache [pages,
/// heads, page, width], where key j has position j. `table` has `most` pages for each sequence.
template <int page, int heads> struct PagedRows {
  static constexpr bool packed = true;
  const i32 *cu, *keys, *order, *pos, *table;
  idx most, pages;
  TFCC_FN idx sequence(idx place) const { return order[place]; }
  TFCC_FN idx query_count(idx b) const { return cu[b + 1] - cu[b]; }
  TFCC_FN idx key_count(idx b) const { return imin(keys[b], most * page); }
  TFCC_FN idx first_query(idx b) const { return cu[b]; }
  TFCC_FN idx key_row(idx b, idx head, idx j, idx, idx width) const {
    const idx at = imax(0, imin((idx)table[b * most + j / page], pages - 1));
    return ((at * heads + head) * page + j % page) * width;
  }
  TFCC_FN idx position(idx b, idx row) const { return pos[cu[b] + row]; }
  TFCC_FN idx key_position(idx, idx j) const { return j; }
  TFCC_FN idx keys_end(idx b, idx, idx last, idx right) const {
    return right >= 0 ? imax(0, imin(key_count(b), position(b, last) + 1 + right)) : key_count(b);
  }
  TFCC_FN idx keys_begin(idx b, idx first, idx, idx left) const {
    return left >= 0 ? imax(0, position(b, first) - left) : 0;
  }
  TFCC_FN idx diagonal() const { return 0; }
};

/// The block of `rows` queries from i0 on of head h of sequence b.
template <class Spec, class Queries, class Score, class Visible, class Live, class Sink, class Rows>
TFCC_FN void attend(Queries& s, typename Spec::T* out, const typename Spec::T* q,
                    const typename Spec::T* k, const typename Spec::T* v, const Score& score,
                    const Visible& visible, const Live& live, const Sink& sink, const Rows& place,
                    idx b, idx h, idx i0, int rows) {
  using Tile = AttentionTile<Spec>;
  const idx kv_head = h / (Spec::heads / Spec::kv_heads);
  s.begin(q + (place.first_query(b) + i0) * Spec::q_stride + h * Tile::d, rows);
  const idx diagonal = place.diagonal();
  constexpr idx right = Spec::causal ? 0 : Spec::window_right, left = Spec::window_left;
  const idx limit = place.keys_end(b, i0, i0 + rows - 1, right);
  for (idx j = place.keys_begin(b, i0, i0 + rows - 1, left); j < limit;) {
    int count = 0;
    for (; j < limit && count < Tile::block_n; ++j) {
      if (!live(b, j)) continue;
      s.key[count] = j;
      s.k[count] = k + place.key_row(b, kv_head, j, Spec::k_stride, Tile::d);
      s.v[count] = v + place.key_row(b, kv_head, j, Spec::v_stride, Tile::dv);
      ++count;
    }
    if (count == 0) break;
    attention_products(s, count);
    s.change_scores(count, [&](f32 x, int i, int t) {
      const idx key = place.key_position(b, s.key[t]), query = place.position(b, i0 + i);
      if constexpr (Spec::scaled) x *= Spec::score_scale;
      x = score(x, b, h, query, key);
      bool shown = visible(b, h, query, key);
      if constexpr (right >= 0) shown = shown && key <= query + diagonal + right;
      if constexpr (left >= 0) shown = shown && key >= query + diagonal - left;
      return shown ? x : -kInf;
    });
    attention_softmax(s, count);
    attention_values(s, count);
  }
  s.finish(out + (place.first_query(b) + i0) * Spec::out_stride + h * Tile::dv, sink(b, h));
}

/// Spec: T, heads, kv_heads, head_dim, v_dim, q_stride, k_stride, v_stride, out_stride, block_m,
/// block_n, causal, window_left, window_right (-1: none), scaled, score_scale. Work items are those
/// of `queries` rows a sequence; where it has fewer, some are nothing.
template <class Spec, class Score, class Visible, class Live, class Sink, class Rows>
TFCC_FN void attention(typename Spec::T* __restrict out, const typename Spec::T* q,
                       const typename Spec::T* k, const typename Spec::T* v,
                       [[maybe_unused]] idx batch, idx most_queries, [[maybe_unused]] idx most_keys,
                       const Score& score, const Visible& visible, const Live& live,
                       const Sink& sink, const Rows& place, i64 begin, i64 end) {
  constexpr int m = Spec::block_m;
  const idx blocks = (most_queries + m - 1) / m;
  for (i64 item = begin; item < end; ++item) {
    const idx i0 = item % blocks * m;
    const idx h = item / blocks % Spec::heads;
    const idx b = place.sequence(item / blocks / Spec::heads);
    const idx queries = place.query_count(b);
    if (i0 >= queries) continue;
    const int rows = (int)imin(m, queries - i0);
    if constexpr (kSame<typename Spec::T, f32>) {
      if (rows <= FewQueries<Spec>::most) {
        FewQueries<Spec> s;
        attend<Spec>(s, out, q, k, v, score, visible, live, sink, place, b, h, i0, rows);
        continue;
      }
    }
    ManyQueries<Spec> s;
    attend<Spec>(s, out, q, k, v, score, visible, live, sink, place, b, h, i0, rows);
  }
}

template <class Spec, class Score, class Visible, class Live, class Sink>
TFCC_FN void attention(typename Spec::T* __restrict out, const typename Spec::T* q,
                       const typename Spec::T* k, const typename Spec::T* v, idx batch, idx queries,
                       idx keys, const Score& score, const Visible& visible, const Live& live,
                       const Sink& sink, i64 begin, i64 end) {
  attention<Spec>(out, q, k, v, batch, queries, keys, score, visible, live, sink,
                  PaddedRows{queries, keys}, begin, end);
}
