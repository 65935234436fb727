//! Which of an interface's frames a port gets when several share it.
//!
//! A program of classic BPF, as in `filter`, which the kernel runs for each frame and port. The kernel has taken the
//! outermost VLAN tag off before. No load goes beyond the frame: such a one would have all ports lose it.

use libc::sock_filter;

/// A part of the frames of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Part {
    /// Every frame.
    #[default]
    All,
    /// No frame: for a port that only sends.
    Nothing,
    /// The frames of those pairs of hosts whose number, divided by `of`, leaves `index`. Both directions of two hosts have
    /// one number: that of their IPv4 or IPv6 addresses behind up to two VLAN tags, or of their MAC addresses where a
    /// frame has no others.
    OfPairs {
        /// Which part, from 0 on.
        index: u32,
        /// Parts in all.
        of: u32,
    },
}

/// By what `longhaul_wire::pair_hash` mixes numbers, which this crate knows in its tests alone: they hold the program against
/// it. The factor, and how far numbers are shifted to the right.
const FACTOR: u32 = 0x9e37_79b1;
const SHIFT: u32 = 15;

/// Load four bytes, or two, from a place in the frame; its length.
const LOAD_4: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const LOAD_2: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
const LOAD_LENGTH: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_LEN) as u16;
/// Keep the number in the one cell that is used, and fetch it into the index; make it the index.
const KEEP: u16 = libc::BPF_ST as u16;
const FETCH_INDEX: u16 = (libc::BPF_LDX | libc::BPF_MEM) as u16;
const TO_INDEX: u16 = (libc::BPF_MISC | libc::BPF_TAX) as u16;
/// Arithmetic with a constant, and with the index.
const MULTIPLY: u16 = (libc::BPF_ALU | libc::BPF_MUL | libc::BPF_K) as u16;
const SHIFT_RIGHT: u16 = (libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K) as u16;
const REMAINDER: u16 = (libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K) as u16;
const XOR_INDEX: u16 = (libc::BPF_ALU | libc::BPF_XOR | libc::BPF_X) as u16;
const ADD_INDEX: u16 = (libc::BPF_ALU | libc::BPF_ADD | libc::BPF_X) as u16;
/// Jump if equal, if at least, always.
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ) as u16;
const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE) as u16;
const ALWAYS: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const END: u16 = libc::BPF_RET as u16;

/// Where the EtherType stands, and how much further a VLAN tag moves it.
const ETHERTYPE: u32 = 12;
const TAG_BYTES: u32 = 4;
const CELL: u32 = 0;

/// Where two addresses are, and how long each is.
#[derive(Clone, Copy)]
struct Addresses {
    source: u32,
    destination: u32,
    bytes: u32,
}

impl Addresses {
    const MAC: Self = Addresses { source: 0, destination: 6, bytes: 6 };

    /// Behind an EtherType at a place.
    const fn ipv4(ethertype: u32) -> Self {
        Addresses { source: ethertype + 14, destination: ethertype + 18, bytes: 4 }
    }

    const fn ipv6(ethertype: u32) -> Self {
        Addresses { source: ethertype + 10, destination: ethertype + 26, bytes: 16 }
    }
}

impl Part {
    /// As instructions; `None`: none are needed.
    pub(crate) fn program(self) -> Option<Vec<sock_filter>> {
        let (index, of) = match self {
            Part::All | Part::Nothing => return None,
            Part::OfPairs { index, of } => (index, of.max(1)),
        };
        let mut program = Program::default();
        program.load(LOAD_2, ETHERTYPE);
        program.by_ip(ETHERTYPE);
        for tag in [libc::ETH_P_8021Q, libc::ETH_P_8021AD] {
            program.jump(IF_EQUAL, tag as u32, Target::Tagged, Target::Next);
        }
        program.jump(ALWAYS, 0, Target::Macs, Target::Next);
        program.place(Target::Tagged);
        program.unless_shorter(ETHERTYPE + TAG_BYTES + 2);
        program.load(LOAD_2, ETHERTYPE + TAG_BYTES);
        program.by_ip(ETHERTYPE + TAG_BYTES);
        program.place(Target::Macs);
        program.number(Addresses::MAC);
        program.place(Target::Decide);
        program.scatter();
        program.load(REMAINDER, of);
        program.jump(IF_EQUAL, index, Target::Next, Target::Drop);
        program.load(END, u32::MAX);
        program.place(Target::Drop);
        program.load(END, 0);
        Some(program.assembled())
    }
}

/// Where jumps go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Next,
    /// Past so many instructions.
    Past(u8),
    Tagged,
    Macs,
    Decide,
    Drop,
}

/// Instructions, and the places that jumps go to, which are all behind them.
#[derive(Default)]
struct Program {
    code: Vec<(sock_filter, [Target; 2])>,
    places: Vec<(Target, usize)>,
}

impl Program {
    /// An instruction that is no jump.
    fn load(&mut self, code: u16, k: u32) {
        self.code.push((sock_filter { code, jt: 0, jf: 0, k }, [Target::Next; 2]));
    }

    fn jump(&mut self, code: u16, with: u32, if_so: Target, if_not: Target) {
        self.code.push((sock_filter { code, jt: 0, jf: 0, k: with }, [if_so, if_not]));
    }

    /// The next instruction is this target.
    fn place(&mut self, target: Target) {
        self.places.push((target, self.code.len()));
    }

    /// Goes by the MACs when the frame has fewer bytes.
    fn unless_shorter(&mut self, bytes: u32) {
        self.load(LOAD_LENGTH, 0);
        self.jump(IF_AT_LEAST, bytes, Target::Next, Target::Macs);
    }

    /// Decides by IP addresses if the EtherType at this place, which is loaded and stays so otherwise, says that there are
    /// any.
    fn by_ip(&mut self, ethertype: u32) {
        for (kind, addresses) in
            [(libc::ETH_P_IP, Addresses::ipv4(ethertype)), (libc::ETH_P_IPV6, Addresses::ipv6(ethertype))]
        {
            let start = self.code.len();
            self.jump(IF_EQUAL, kind as u32, Target::Next, Target::Next);
            self.unless_shorter(addresses.destination + addresses.bytes);
            self.number(addresses);
            self.jump(ALWAYS, 0, Target::Decide, Target::Next);
            let past = self.code.len() - start - 1;
            self.code[start].1[1] = Target::Past(past as u8);
        }
    }

    /// The sum of both addresses' numbers.
    fn number(&mut self, addresses: Addresses) {
        self.mix(addresses.source, addresses.bytes);
        self.load(KEEP, CELL);
        self.mix(addresses.destination, addresses.bytes);
        self.load(FETCH_INDEX, CELL);
        self.load(ADD_INDEX, 0);
    }

    /// Four bytes at a time, and what is left.
    fn mix(&mut self, address: u32, bytes: u32) {
        for at in (0..bytes).step_by(4) {
            if at > 0 {
                self.load(TO_INDEX, 0);
            }
            self.load(if bytes - at >= 4 { LOAD_4 } else { LOAD_2 }, address + at);
            if at > 0 {
                self.load(XOR_INDEX, 0);
            }
            self.scatter();
        }
    }

    fn scatter(&mut self) {
        self.load(MULTIPLY, FACTOR);
        self.load(TO_INDEX, 0);
        self.load(SHIFT_RIGHT, SHIFT);
        self.load(XOR_INDEX, 0);
    }

    fn assembled(self) -> Vec<sock_filter> {
        let distance = |from: usize, target: Target| match target {
            Target::Next => 0,
            Target::Past(count) => count.into(),
            placed => {
                let place = self.places.iter().find(|(target, _)| *target == placed);
                place.map_or(0, |(_, at)| at - from - 1)
            }
        };
        let resolved = |(at, &(mut instruction, [if_so, if_not])): (usize, &(sock_filter, [Target; 2]))| {
            if instruction.code == ALWAYS {
                instruction.k = distance(at, if_so) as u32;
            } else {
                // The program is short enough, as its test sees.
                (instruction.jt, instruction.jf) = (distance(at, if_so) as u8, distance(at, if_not) as u8);
            }
            instruction
        };
        self.code.iter().enumerate().map(resolved).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_wire::pair_hash;
    use proptest::prelude::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixDatagram;

    /// A way through a program in the kernel, which any socket has.
    struct Filtered {
        to: UnixDatagram,
        from: UnixDatagram,
    }

    impl Filtered {
        fn new(part: Part) -> Self {
            let (to, from) = UnixDatagram::pair().unwrap();
            from.set_nonblocking(true).unwrap();
            let mut program = part.program().unwrap();
            let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
            let size = size_of_val(&filter) as libc::socklen_t;
            // SAFETY: the descriptor is open, and the program is live and of the given length.
            let set = unsafe {
                let filter = (&raw const filter).cast();
                libc::setsockopt(from.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, filter, size)
            };
            assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
            Filtered { to, from }
        }

        fn takes(&self, frame: &[u8]) -> bool {
            // What the filter drops, the sender is told of.
            let _ = self.to.send(frame);
            let mut received = [0; 256];
            self.from.recv(&mut received).is_ok_and(|len| received[..len] == *frame)
        }
    }

    fn parts(of: u32) -> Vec<Filtered> {
        (0..of).map(|index| Filtered::new(Part::OfPairs { index, of })).collect()
    }

    /// Frames as the kernel has them: with one tag at most.
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
        fn each_frame_is_of_the_part_that_its_pair_has(frames in proptest::collection::vec(frames(), 1..40)) {
            let parts = parts(3);
            for frame in &frames {
                let own = pair_hash(frame) % 3;
                // A third tag is behind what is looked at, with the one that the kernel took off.
                let is_tagged_twice = frame[12..14] == [0x88, 0xa8] && frame.get(16..18) == Some(&[0x81, 0x00]);
                let takers: Vec<u32> = (0..3).filter(|index| parts[*index as usize].takes(frame)).collect();
                prop_assert_eq!(takers.len(), 1);
                prop_assert!(is_tagged_twice || takers[0] == own, "{:02x?}", frame);
            }
        }
    }

    #[test]
    fn a_frame_of_any_length_has_one_taker() {
        let parts = parts(2);
        for start in [[0x08, 0x00, 0, 0, 0, 0], [0x86, 0xdd, 0, 0, 0, 0], [0x81, 0x00, 0, 5, 0x86, 0xdd]] {
            let whole = [&[2; 12], &start[..], &[7; 64]].concat();
            for len in 14..whole.len() {
                let takers = parts.iter().filter(|part| part.takes(&whole[..len])).count();
                assert_eq!(takers, 1, "{len} bytes");
            }
        }
    }

    #[test]
    fn jumps_reach() {
        let program = Part::OfPairs { index: 1, of: 2 }.program().unwrap();
        let jump = |instruction: &sock_filter| libc::BPF_JMP == u32::from(instruction.code & 7);
        assert!(program.iter().filter(|one| jump(one)).count() > 8);
        assert!(program.len() < usize::from(u8::MAX), "{} instructions", program.len());
    }
}
