//! Byte ranges of a message mapped onto its scatter/gather list.

use crate::{Context, Denied, Intent, SGE_MAX, Sge};
use longhaul_node::{Payload, Segment};

/// Memory of `len` bytes at `offset` of the message in `segments`, checked for reading. Returns the
/// number of entries of `out` used.
#[inline]
pub(crate) fn gather_list<C: Context>(
    ctx: &C,
    segments: &[Sge],
    offset: u64,
    len: u32,
    out: &mut [Segment; SGE_MAX],
) -> Result<usize, Denied> {
    let mut used = 0;
    for_each_piece(segments, offset, len, |sge, skip, n, _| {
        let address = ctx.local(sge.lkey, sge.address.wrapping_add(skip), n, Intent::LocalRead)?;
        out[used] = Segment { address, len: n as usize };
        used += 1;
        Ok(())
    })?;
    Ok(used)
}

/// Copies `payload` to `offset` of the message in `segments`. Bytes beyond its end are an error.
///
/// # Errors
/// [`Denied`] if a segment may not be written to, or the message ends before the payload does.
#[inline]
pub fn scatter_list<C: Context>(
    ctx: &mut C,
    segments: &[Sge],
    offset: u64,
    payload: &Payload<'_>,
) -> Result<(), Denied> {
    let len = payload.len() as u32;
    for_each_piece(segments, offset, len, |sge, skip, n, done| {
        let address = ctx.local(sge.lkey, sge.address.wrapping_add(skip), n, Intent::LocalWrite)?;
        if n == len {
            ctx.scatter(address, payload);
        } else {
            scatter_part(ctx, address, payload, done as usize, n as usize);
        }
        Ok(())
    })
}

/// Checks every segment of a whole message for `intent`.
#[inline]
pub(crate) fn check_list<C: Context>(
    ctx: &C,
    segments: &[Sge],
    intent: Intent,
) -> Result<(), Denied> {
    for sge in segments.iter().filter(|s| s.len > 0) {
        ctx.local(sge.lkey, sge.address, sge.len, intent)?;
    }
    Ok(())
}

/// Calls `each(segment, bytes skipped in it, bytes used of it, bytes used before)`.
#[inline]
fn for_each_piece(
    segments: &[Sge],
    mut offset: u64,
    len: u32,
    mut each: impl FnMut(&Sge, u64, u32, u32) -> Result<(), Denied>,
) -> Result<(), Denied> {
    let mut done = 0;
    for sge in segments {
        if done == len {
            break;
        }
        let sge_len = u64::from(sge.len);
        if offset >= sge_len {
            offset -= sge_len;
            continue;
        }
        let n = (sge_len - offset).min(u64::from(len - done)) as u32;
        each(sge, offset, n, done)?;
        done += n;
        offset = 0;
    }
    if done == len { Ok(()) } else { Err(Denied) }
}

fn scatter_part<C: Context>(
    ctx: &mut C,
    address: u64,
    payload: &Payload<'_>,
    start: usize,
    len: usize,
) {
    if let Some(bytes) = payload.as_bytes() {
        return ctx.scatter(address, &Payload::Bytes(&bytes[start..start + len]));
    }
    match *payload {
        Payload::Bytes(_) | Payload::Shared(_) | Payload::Lent { .. } => {}
        Payload::Synthetic { .. } | Payload::Train { .. } => {
            ctx.scatter(address, &Payload::Synthetic { len });
        }
        Payload::Memory(memory, pieces) => {
            let mut to = address;
            let (mut skip, mut left) = (start, len);
            for piece in pieces {
                if left == 0 {
                    break;
                }
                if skip >= piece.len {
                    skip -= piece.len;
                    continue;
                }
                let n = (piece.len - skip).min(left);
                let part = Segment { address: piece.address + skip as u64, len: n };
                ctx.scatter(to, &Payload::Memory(memory, &[part]));
                to += n as u64;
                left -= n;
                skip = 0;
            }
        }
    }
}
