//! Patterns of grids: stencils, finite elements on bricks, road networks, and the dense matrix.

use super::pattern::GeneratedPattern;
use super::random::{Purpose, hash};
use crate::{Error, memory};

/// Share of a grid's edges that `road` keeps: rows of 2.5 entries, as in road networks.
pub(super) const ROAD_SHARE: f64 = 0.62;

/// A grid of nodes, each coupled to the nodes around it: those at most one step away in every
/// direction, and offset in at most `directions` of the three.
#[derive(Debug)]
pub(super) struct Stencil {
    /// Nodes along x, y and z; x runs fastest.
    extents: [usize; 3],
    /// Offsets of the neighbours, as steps along x, y and z, in ascending order of node number.
    steps: Vec<[isize; 3]>,
    /// Rows per node; the block that couples two nodes is full.
    unknowns: usize,
}

impl Stencil {
    pub(super) fn new(extents: [usize; 3], directions: usize, unknowns: usize) -> Self {
        let mut steps = Vec::new();
        for z in -1..=1isize {
            for y in -1..=1 {
                for x in -1..=1 {
                    if [x, y, z].iter().filter(|&&s| s != 0).count() <= directions {
                        steps.push([x, y, z]);
                    }
                }
            }
        }
        Self { extents, steps, unknowns }
    }

    pub(super) fn pattern(&self) -> Result<GeneratedPattern, Error> {
        let nodes: usize = self.extents.iter().product();
        GeneratedPattern::by_rows(nodes * self.unknowns, &|row, columns| {
            self.columns(row / self.unknowns, columns);
            Ok(())
        })
    }

    /// Appends the columns of every row of `node`.
    fn columns(&self, node: usize, columns: &mut Vec<u32>) {
        let [nx, ny, nz] = self.extents;
        let (x, y, z) = (node % nx, node / nx % ny, node / nx / ny);
        for &[dx, dy, dz] in &self.steps {
            // A step below zero wraps to a number far beyond the grid.
            let (x, y, z) =
                (x.wrapping_add_signed(dx), y.wrapping_add_signed(dy), z.wrapping_add_signed(dz));
            if x < nx && y < ny && z < nz {
                let first = ((z * ny + y) * nx + x) * self.unknowns;
                columns.extend((first..first + self.unknowns).map(|c| c as u32));
            }
        }
    }
}

/// An `n` x `n` grid graph in which every edge is kept with probability [`ROAD_SHARE`]; symmetric,
/// no diagonal.
pub(super) fn road(n: usize, seed: u64) -> Result<GeneratedPattern, Error> {
    // Both ends of an edge must agree on it, so that the edge is hashed instead of drawing from a
    // stream of random numbers.
    let kept = |edge| (hash(seed, Purpose::Edge, edge) as f64) < ROAD_SHARE * 2f64.powi(64);
    let east = |node| kept(2 * node);
    let south = |node| kept(2 * node + 1);
    GeneratedPattern::by_rows(n * n, &|node, columns| {
        let (x, y) = (node % n, node / n);
        if y > 0 && south(node - n) {
            columns.push((node - n) as u32);
        }
        if x > 0 && east(node - 1) {
            columns.push((node - 1) as u32);
        }
        if x + 1 < n && east(node) {
            columns.push((node + 1) as u32);
        }
        if y + 1 < n && south(node) {
            columns.push((node + n) as u32);
        }
        Ok(())
    })
}

/// All `n` x `n` places.
pub(super) fn dense(n: usize) -> Result<GeneratedPattern, Error> {
    GeneratedPattern::by_rows(n, &|_, columns| {
        memory::reserve(columns, n)?;
        columns.extend(0..n as u32);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_points_on_a_grid_of_three() {
        let p = Stencil::new([3, 3, 1], 1, 1).pattern().unwrap();
        assert_eq!(p.row_ptr, [0, 3, 7, 10, 14, 19, 23, 26, 30, 33]);
        #[rustfmt::skip]
        let expected = [
            0, 1, 3,     0, 1, 2, 4,        1, 2, 5,
            0, 3, 4, 6,  1, 3, 4, 5, 7,     2, 4, 5, 8,
            3, 6, 7,     4, 6, 7, 8,        5, 7, 8,
        ];
        assert_eq!(p.col_idx, expected);
    }

    #[test]
    fn seven_and_twenty_seven_points_in_the_middle_of_a_cube() {
        let middle = |directions| {
            let mut columns = Vec::new();
            Stencil::new([3, 3, 3], directions, 1).columns(13, &mut columns);
            columns
        };
        assert_eq!(middle(1), [4, 10, 12, 13, 14, 16, 22]);
        assert!(middle(3).into_iter().eq(0..27));
    }

    #[test]
    fn three_unknowns_make_full_blocks() {
        let p = Stencil::new([2, 1, 1], 3, 3).pattern().unwrap();
        assert_eq!(p.row_ptr, [0, 6, 12, 18, 24, 30, 36]);
        assert!(p.col_idx.chunks(6).all(|row| row == [0, 1, 2, 3, 4, 5]));
    }

    #[test]
    fn roads_lead_both_ways() {
        let p = road(40, 5).unwrap();
        let row = |i: usize| &p.col_idx[p.row_ptr[i]..p.row_ptr[i + 1]];
        for i in 0..1600 {
            assert!(row(i).iter().all(|&j| row(j as usize).contains(&(i as u32))), "row {i}");
        }
    }
}
