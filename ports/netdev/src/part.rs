//! Distribution of an interface's frames over several ports.
//!
//! A classic BPF program, which the kernel runs per frame and port, after it has stripped the
//! outermost VLAN tag. The program must not load beyond the frame, because all ports would lose
//! such a frame.

use crate::bpf::{self, ETHERTYPE, Program, Target};
use libc::sock_filter;

/// A part of the frames of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FrameSubset {
    /// Every frame.
    #[default]
    All,
    /// No frame, for a port that only sends.
    Nothing,
    /// The frames of host pairs whose hash is `index` modulo `of`. Both directions of a host pair
    /// have the same hash: of their IPv4 or IPv6 addresses behind up to two VLAN tags, or of their
    /// MAC addresses if a frame has no IP addresses.
    OfPairs {
        /// Number of the part, from 0.
        index: u32,
        /// Number of parts.
        of: u32,
    },
}

/// Factor and right shift of `longhaul_wire::pair_hash`. This crate depends on that one in tests
/// only, which compare the program with it.
const FACTOR: u32 = 0x9e37_79b1;
const SHIFT: u32 = 15;

/// Bytes by which a VLAN tag moves the EtherType.
const TAG_BYTES: u32 = 4;
const CELL: u32 = 0;

/// Behind a tag; at another EtherType; hash MAC addresses; the hash is complete.
const TAGGED: Target = Target::At("tagged");
const OTHER: Target = Target::At("other");
const MACS: Target = Target::At("MACs");
const DECIDE: Target = Target::At("decide");

/// Offsets and length of two addresses.
#[derive(Clone, Copy)]
struct Addresses {
    source: u32,
    destination: u32,
    bytes: u32,
}

impl Addresses {
    const MAC: Self = Addresses { source: 0, destination: 6, bytes: 6 };

    /// Behind an EtherType at an offset.
    const fn ipv4(ethertype: u32) -> Self {
        Addresses { source: ethertype + 14, destination: ethertype + 18, bytes: 4 }
    }

    const fn ipv6(ethertype: u32) -> Self {
        Addresses { source: ethertype + 10, destination: ethertype + 26, bytes: 16 }
    }
}

impl FrameSubset {
    /// The instructions; `None`: no filter is needed.
    pub(crate) fn program(self) -> Option<Vec<sock_filter>> {
        if matches!(self, FrameSubset::All | FrameSubset::Nothing) {
            return None;
        }
        let mut program = Program::default();
        self.append_to(&mut program);
        Some(program.assembled())
    }

    /// Appends instructions, which end by accepting or dropping the frame.
    pub(crate) fn append_to(self, program: &mut Program) {
        let (index, of) = match self {
            FrameSubset::All | FrameSubset::Nothing => {
                return program.jump(bpf::ALWAYS, 0, Target::Take, Target::Next);
            }
            FrameSubset::OfPairs { index, of } => (index, of.max(1)),
        };
        program.add(bpf::LOAD_2, ETHERTYPE);
        program.by_ip(ETHERTYPE);
        for tag in [libc::ETH_P_8021Q, libc::ETH_P_8021AD] {
            program.jump(bpf::IF_EQUAL, tag as u32, TAGGED, Target::Next);
        }
        program.jump(bpf::ALWAYS, 0, MACS, Target::Next);
        program.place(TAGGED);
        program.unless_shorter(ETHERTYPE + TAG_BYTES + 2);
        program.add(bpf::LOAD_2, ETHERTYPE + TAG_BYTES);
        program.by_ip(ETHERTYPE + TAG_BYTES);
        program.place(MACS);
        program.number(Addresses::MAC);
        program.place(DECIDE);
        program.scatter();
        program.add(bpf::REMAINDER, of);
        program.jump(bpf::IF_EQUAL, index, Target::Take, Target::Drop);
    }
}

/// Parts of a program, with the jump targets of [`FrameSubset::program`].
impl Program {
    /// Jumps to the hash of MAC addresses if the frame is shorter.
    fn unless_shorter(&mut self, bytes: u32) {
        self.add(bpf::LOAD_LENGTH, 0);
        self.jump(bpf::IF_AT_LEAST, bytes, Target::Next, MACS);
    }

    /// Hashes the IP addresses if the loaded EtherType, at this offset, has any; otherwise leaves
    /// it loaded.
    fn by_ip(&mut self, ethertype: u32) {
        for (kind, addresses) in [
            (libc::ETH_P_IP, Addresses::ipv4(ethertype)),
            (libc::ETH_P_IPV6, Addresses::ipv6(ethertype)),
        ] {
            self.jump(bpf::IF_EQUAL, kind as u32, Target::Next, OTHER);
            self.unless_shorter(addresses.destination + addresses.bytes);
            self.number(addresses);
            self.jump(bpf::ALWAYS, 0, DECIDE, Target::Next);
            self.place(OTHER);
        }
    }

    /// Computes the sum of both addresses' hashes.
    fn number(&mut self, addresses: Addresses) {
        self.mix(addresses.source, addresses.bytes);
        self.add(bpf::KEEP, CELL);
        self.mix(addresses.destination, addresses.bytes);
        self.add(bpf::FETCH_INDEX, CELL);
        self.add(bpf::ADD_INDEX, 0);
    }

    /// Hashes four bytes at a time, and the remainder.
    fn mix(&mut self, address: u32, bytes: u32) {
        for at in (0..bytes).step_by(4) {
            if at > 0 {
                self.add(bpf::TO_INDEX, 0);
            }
            self.add(if bytes - at >= 4 { bpf::LOAD_4 } else { bpf::LOAD_2 }, address + at);
            if at > 0 {
                self.add(bpf::XOR_INDEX, 0);
            }
            self.scatter();
        }
    }

    fn scatter(&mut self) {
        self.add(bpf::MULTIPLY, FACTOR);
        self.add(bpf::TO_INDEX, 0);
        self.add(bpf::SHIFT_RIGHT, SHIFT);
        self.add(bpf::XOR_INDEX, 0);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use longhaul_wire::pair_hash;
    use proptest::prelude::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixDatagram;

    /// Runs a program in the kernel, by attaching it to a socket.
    pub(crate) struct Filtered {
        to: UnixDatagram,
        from: UnixDatagram,
    }

    impl Filtered {
        /// Runs the filter of a part; `None`: it has none.
        pub(crate) fn of(part: FrameSubset) -> Option<Self> {
            part.program().map(Filtered::new)
        }

        pub(crate) fn new(mut program: Vec<sock_filter>) -> Self {
            let (to, from) = UnixDatagram::pair().unwrap();
            from.set_nonblocking(true).unwrap();
            let filter =
                libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
            let size = size_of_val(&filter) as libc::socklen_t;
            // SAFETY: the descriptor is open, and the program is live and of the given length.
            let set = unsafe {
                let filter = (&raw const filter).cast();
                libc::setsockopt(
                    from.as_raw_fd(),
                    libc::SOL_SOCKET,
                    libc::SO_ATTACH_FILTER,
                    filter,
                    size,
                )
            };
            assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
            Filtered { to, from }
        }

        pub(crate) fn takes(&self, frame: &[u8]) -> bool {
            // The sender gets an error for a frame that the filter drops.
            let _ = self.to.send(frame);
            let mut received = [0; 256];
            self.from.recv(&mut received).is_ok_and(|len| received[..len] == *frame)
        }
    }

    fn parts(of: u32) -> Vec<Filtered> {
        (0..of).filter_map(|index| Filtered::of(FrameSubset::OfPairs { index, of })).collect()
    }

    /// Frames as filters see them: with at most one tag.
    fn frames() -> impl Strategy<Value = Vec<u8>> {
        let start = (any::<[u8; 12]>(), any::<bool>(), 0..4_usize, any::<Vec<u8>>());
        start.prop_map(|(macs, is_tagged, kind, rest)| {
            let mut frame = macs.to_vec();
            if is_tagged {
                frame.extend([0x88, 0xa8, rest.len() as u8, 5]);
            }
            frame.extend([[0x08, 0x00], [0x86, 0xdd], [0x08, 0x06], [0x81, 0x00]][kind]);
            frame.extend(rest.iter().cycle().take(rest.len() % 70));
            frame
        })
    }

    proptest! {
        #[test]
        fn each_frame_is_of_the_part_that_its_pair_has(
            frames in proptest::collection::vec(frames(), 1..40),
        ) {
            let parts = parts(3);
            for frame in &frames {
                let own = pair_hash(frame) % 3;
                // The kernel strips one tag and the program reads one more; a third hides the
                // addresses.
                let is_tagged_twice =
                    frame[12..14] == [0x88, 0xa8] && frame.get(16..18) == Some(&[0x81, 0x00]);
                let takers: Vec<u32> =
                    (0..3).filter(|index| parts[*index as usize].takes(frame)).collect();
                prop_assert_eq!(takers.len(), 1);
                prop_assert!(is_tagged_twice || takers[0] == own, "{:02x?}", frame);
            }
        }
    }

    #[test]
    fn a_frame_of_any_length_has_one_taker() {
        let parts = parts(2);
        for start in
            [[0x08, 0x00, 0, 0, 0, 0], [0x86, 0xdd, 0, 0, 0, 0], [0x81, 0x00, 0, 5, 0x86, 0xdd]]
        {
            let whole = [&[2; 12], &start[..], &[7; 64]].concat();
            for len in 14..whole.len() {
                let takers = parts.iter().filter(|part| part.takes(&whole[..len])).count();
                assert_eq!(takers, 1, "{len} bytes");
            }
        }
    }

    #[test]
    fn jumps_reach() {
        let program = FrameSubset::OfPairs { index: 1, of: 2 }.program().unwrap();
        let jump = |instruction: &sock_filter| libc::BPF_JMP == u32::from(instruction.code & 7);
        assert!(program.iter().filter(|one| jump(one)).count() > 8);
        assert!(program.len() < usize::from(u8::MAX), "{} instructions", program.len());
    }
}
