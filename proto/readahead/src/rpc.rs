//! RPC-over-RDMA version 1: transport headers of calls and replies.
//!
//! Source: RFC 8166, section 4 (headers, chunk lists), and RFC 8797 (private data).

use crate::command::{Command, Range};
use longhaul_units::RKey;

/// First word of the private data of a version 1 end with RFC 8797, in network byte order.
const MAGIC: u32 = 0xf6ab_0e18;
const VERSION: u32 = 1;
const RDMA_MSG: u32 = 0;
const RDMA_NOMSG: u32 = 1;
const CALL: u32 = 0;
/// Most segments examined per chunk, and most items per list.
const ITEMS_MAX: u32 = 64;

/// The XDR words of a header, read from the front.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn next(&mut self) -> Option<u32> {
        let (word, rest) = self.0.split_first_chunk::<4>()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*word))
    }

    fn skip(&mut self, words: u32) -> Option<()> {
        self.0 = self.0.get(words as usize * 4..)?;
        Some(())
    }

    /// A segment: handle, length, offset.
    fn segment(&mut self) -> Option<Range> {
        let (rkey, len) = (RKey(self.next()?), self.next()?);
        let address = u64::from(self.next()?) << 32 | u64::from(self.next()?);
        Some(Range { address, rkey, len })
    }
}

/// True for the private data of a version 1 end (RFC 8797, section 4).
pub(crate) fn is_version_1(private_data: &[u8]) -> bool {
    Words(private_data).next() == Some(MAGIC) && private_data.get(4) == Some(&1)
}

/// The call in a SEND of the client.
pub(crate) fn call(payload: &[u8]) -> Option<Command> {
    let mut words = Words(payload);
    let mut command = Command::new(words.next()?);
    let (version, _credits, kind) = (words.next()?, words.next()?, words.next()?);
    if version != VERSION {
        return None;
    }
    let mut items = 0;
    while words.next()? != 0 {
        let _position = words.next()?;
        command.push(words.segment()?);
        items += 1;
        if items > ITEMS_MAX {
            return None;
        }
    }
    let reads = command.ranges().len();
    let is_call = match kind {
        RDMA_MSG => is_message_a_call(&mut words, command.id).unwrap_or(false),
        // The whole call is in a chunk at position 0.
        RDMA_NOMSG => true,
        _ => false,
    };
    command.is_stable = command.is_whole && is_call && reads > 0;
    Some(command)
}

/// Skips the write list and the reply chunk. Returns `true` if a call with the same XID follows.
fn is_message_a_call(words: &mut Words<'_>, xid: u32) -> Option<bool> {
    let mut items = 0;
    while words.next()? != 0 {
        skip_chunk(words)?;
        items += 1;
        if items > ITEMS_MAX {
            return None;
        }
    }
    if words.next()? != 0 {
        skip_chunk(words)?;
    }
    Some(words.next()? == xid && words.next()? == CALL)
}

fn skip_chunk(words: &mut Words<'_>) -> Option<()> {
    let segments = words.next()?;
    (segments <= ITEMS_MAX).then_some(())?;
    words.skip(segments * 4)
}

/// The XID that a SEND of the server answers.
pub(crate) fn replied(payload: &[u8]) -> Option<u32> {
    let mut words = Words(payload);
    let xid = words.next()?;
    (words.next()? == VERSION).then_some(xid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    const HEADER: [u32; 4] = [0xabcd, 1, 32, RDMA_MSG];
    const CHUNK: [u32; 6] = [1, 116, 0x77, 4096, 0xffff, 0x1000];

    #[test]
    fn a_call_announces_its_read_chunks() {
        let second = [1, 116, 0x78, 100, 0, 0x9000];
        let end = [0, 1, 1, 0x99, 64, 0, 0, 0, 0, 0xabcd, CALL, 2];
        let message = [&HEADER[..], &CHUNK, &second, &end].concat();
        let found = call(&bytes(&message)).unwrap();
        assert_eq!((found.id, found.is_stable), (0xabcd, true));
        let range = |address, rkey, len| Range { address, rkey: RKey(rkey), len };
        assert_eq!(found.ranges(), [range(0xffff_0000_1000, 0x77, 4096), range(0x9000, 0x78, 100)]);
    }

    #[test]
    fn a_reply_is_no_call() {
        let message = [&HEADER[..], &CHUNK, &[0, 0, 0, 0xabcd, 1]].concat();
        assert!(!call(&bytes(&message)).unwrap().is_stable);
        let other = [&HEADER[..], &CHUNK, &[0, 0, 0, 0xabce, CALL]].concat();
        assert!(!call(&bytes(&other)).unwrap().is_stable, "another message's XID");
    }

    #[test]
    fn a_long_call_lies_in_its_chunk() {
        let message = [&[5, 1, 32, RDMA_NOMSG][..], &CHUNK, &[0, 0, 0]].concat();
        assert!(call(&bytes(&message)).unwrap().is_stable);
    }

    #[test]
    fn what_is_cut_short_or_of_another_version_is_not_understood() {
        let message = bytes(&[&HEADER[..], &CHUNK, &[0, 0, 0, 0xabcd, CALL]].concat());
        for len in 0..message.len() {
            assert!(!call(&message[..len]).is_some_and(|call| call.is_stable), "{len}");
        }
        assert_eq!(call(&bytes(&[1, 2, 3, 0, 0, 0, 0])), None);
        assert!(replied(&bytes(&[9, 1])) == Some(9) && replied(&bytes(&[9, 2])).is_none());
    }

    #[test]
    fn private_data_begins_with_the_magic_number() {
        assert!(is_version_1(&[0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 3]));
        assert!(!is_version_1(&[0xf6, 0xab, 0x0e, 0x18, 2, 1, 3, 3]) && !is_version_1(&[0; 56]));
    }
}
