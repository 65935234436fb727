//! Time per 4 KiB datagram, sealed and opened by the node, compared with the bare cipher over the
//! same bytes in place, and over bytes that are copied first, as those of a borrowed frame must be.
//!
//! The last table alternates between them, so that a machine of varying speed does not distort
//! their ratio.

#![allow(missing_docs, reason = "criterion's macros declare public functions")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use longhaul_node::{Frame, FrameBuf, FramePool, Node, Payload, Side, Trailer, Transmit};
use longhaul_seal::{Cipher, Config, PeerConfig, PrivateKey, Seal, Seed};
use longhaul_units::{Instant, Psn, Qpn};
use longhaul_wire::{Bth, Head, MacAddr, Opcode, Path, PathTemplate, Udp};
use ring::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, Tag, UnboundKey};
use std::hint::black_box;
use std::time::{Duration, Instant as Clock};

/// Datagrams before the other end's turn, as many as one poll of a port returns.
const CHUNK: usize = 32;
/// Length of the cipher's associated data over IPv4.
const BOUND: [u8; 32] = [7; 32];
const NOW: Instant = Instant::from_ns(1_000_000_000);

/// Accepts frames as a port does that has sent them, or keeps their bytes.
#[derive(Default)]
struct Port {
    keeps: bool,
    frames: Vec<(Side, Vec<u8>)>,
}

impl Transmit for Port {
    fn room(&mut self, _side: Side) -> usize {
        usize::MAX
    }
    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        if self.keeps {
            let mut bytes = vec![0; frame.len()];
            frame.write_to(&mut bytes);
            self.frames.push((side, bytes));
        } else {
            black_box((side, frame.head, frame.payload));
        }
    }
}

fn give(node: &mut Seal, side: Side, bytes: &[u8]) {
    let head = Head::copy_of(bytes);
    let Ok(frame) = Frame::received(&head, bytes) else { return };
    node.handle_frame(NOW, side, &frame);
}

fn key(n: u8) -> PrivateKey {
    PrivateKey::generate(&Seed::new([n; 32]))
}

/// Two seals with keys, and a datagram as the transport hands it over: headers, a pooled payload,
/// an ICRC.
struct Load {
    nodes: [Seal; 2],
    head: Vec<u8>,
    payload: FrameBuf,
    port: Port,
    bare: LessSafeKey,
    number: u64,
    /// Input of the next turn.
    wire: Vec<(Head, Vec<u8>)>,
    buffers: Vec<(Vec<u8>, Tag, u64)>,
    source: Vec<u8>,
}

impl Load {
    fn new(cipher: Cipher, payload_len: usize) -> Self {
        let node = |n: u8| {
            let peer = PeerConfig {
                name: "far".into(),
                public_key: key(2 - n).public(),
                preshared_key: None,
            };
            let config = Config::new(key(1 + n), vec![peer], Seed::new([n; 32]));
            Seal::new(Config { ciphers: vec![cipher], ..config }).expect("a sound configuration")
        };
        let path = Path {
            source_mac: MacAddr([2; 6]),
            destination_mac: MacAddr([4; 6]),
            vlan: None,
            source_ip: [10, 0, 0, 1].into(),
            destination_ip: [10, 0, 1, 1].into(),
            traffic_class: 2,
            hop_limit: 64,
            flow_label: 0,
            udp_source_port: 0xc000,
        };
        let template = PathTemplate::new(&path);
        let mut head =
            Head::begin(&template, &Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(7), Psn::new(0)));
        head.finish(&template, payload_len);
        let mut head = head.bytes().to_vec();
        if let Some(udp) = Udp::find(&head) {
            // The transport's 24 bytes.
            head.splice(udp.payload()..udp.payload(), [0x10; 24]);
            udp.lengthen(&mut head, 24);
            udp.set_destination_port(&mut head, 4797);
        }
        let payload = vec![5; payload_len];
        let held = Frame { head: &[], payload: Payload::Bytes(&payload), trailer: Trailer::None };
        let algorithm = if cipher == Cipher::Aes256Gcm { &AES_256_GCM } else { &CHACHA20_POLY1305 };
        let mut load = Load {
            nodes: [node(0), node(1)],
            head,
            payload: FramePool::new().hold(&held),
            port: Port::default(),
            bare: LessSafeKey::new(
                UnboundKey::new(algorithm, &[3; 32]).expect("a key of 32 bytes"),
            ),
            number: 0,
            wire: Vec::new(),
            buffers: Vec::new(),
            source: Vec::new(),
        };
        load.source = vec![8; load.len()];
        load.meet();
        load
    }

    fn meet(&mut self) {
        self.port.keeps = true;
        self.offer(1);
        for _ in 0..10 {
            for from in 0..2 {
                self.nodes[from].poll_transmit(NOW, &mut self.port);
                let sent = std::mem::take(&mut self.port.frames);
                // The datagram that waited for the keys leaves the far seal inside.
                for (side, bytes) in sent.iter().filter(|(side, _)| *side == Seal::wan(0)) {
                    give(&mut self.nodes[1 - from], *side, bytes);
                }
            }
        }
        assert!(self.nodes.iter().all(|node| node.counters().handshakes_done == 1));
        self.port.keeps = false;
    }

    /// Bytes that are encrypted: everything behind UDP.
    fn len(&self) -> usize {
        self.head.len() - 42 + self.payload.payload().len() + 4
    }

    fn offer(&mut self, datagrams: usize) {
        let trailer = Trailer::Received { pad: [0; 3], pad_len: 0, icrc: [9; 4] };
        let frame = Frame { head: &self.head, payload: Payload::Shared(&self.payload), trailer };
        for _ in 0..datagrams {
            self.nodes[0].handle_frame(NOW, Seal::inner(0), &frame);
        }
    }

    fn nonce(&mut self) -> Nonce {
        self.number += 1;
        nonce(self.number)
    }

    fn seal_by_node(&mut self) -> Duration {
        let start = Clock::now();
        self.offer(CHUNK);
        self.nodes[0].poll_transmit(NOW, &mut self.port);
        start.elapsed()
    }

    /// With a source, each buffer is a copy of it.
    fn seal_buffers(&mut self, source: Option<&[u8]>) -> Duration {
        let len = self.len();
        self.buffers.resize_with(CHUNK, || (vec![1; len], Tag::from([0; 16]), 0));
        let mut buffers = std::mem::take(&mut self.buffers);
        let start = Clock::now();
        for (buffer, tag, number) in &mut buffers {
            if let Some(source) = source {
                buffer.copy_from_slice(source);
            }
            let nonce = self.nonce();
            *number = self.number;
            let sealed = self.bare.seal_in_place_separate_tag(nonce, Aad::from(BOUND), buffer);
            *tag = black_box(sealed.expect("not too long"));
        }
        let spent = start.elapsed();
        self.buffers = buffers;
        spent
    }

    fn seal_bare(&mut self) -> Duration {
        self.seal_buffers(None)
    }

    fn seal_copied(&mut self) -> Duration {
        let source = std::mem::take(&mut self.source);
        let spent = self.seal_buffers(Some(&source));
        self.source = source;
        spent
    }

    fn open_by_node(&mut self) -> Duration {
        self.offer(CHUNK);
        self.port.keeps = true;
        self.nodes[0].poll_transmit(NOW, &mut self.port);
        self.port.keeps = false;
        let bytes = std::mem::take(&mut self.port.frames).into_iter().map(|(_, bytes)| bytes);
        self.wire = bytes.map(|bytes| (Head::copy_of(&bytes), bytes)).collect();
        let opened = self.nodes[1].counters().opened;
        let received = |(head, bytes)| Frame::received(head, bytes);
        let frames: Vec<Frame<'_>> =
            self.wire.iter().map(|(head, bytes)| (head, &bytes[..])).flat_map(received).collect();
        let start = Clock::now();
        for frame in &frames {
            self.nodes[1].handle_frame(NOW, Seal::wan(0), frame);
        }
        self.nodes[1].poll_transmit(NOW, &mut self.port);
        let spent = start.elapsed();
        assert_eq!(self.nodes[1].counters().opened, opened + CHUNK as u64);
        spent
    }

    fn open_bare(&mut self) -> Duration {
        self.seal_bare();
        let start = Clock::now();
        for (buffer, tag, number) in &mut self.buffers {
            let opened = self.bare.open_in_place_separate_tag(
                nonce(*number),
                Aad::from(BOUND),
                *tag,
                buffer,
                0..,
            );
            black_box(opened.expect("what was sealed").len());
        }
        start.elapsed()
    }

    fn open_copied(&mut self) -> Duration {
        self.seal_bare();
        let mut copy = vec![0; self.len()];
        let start = Clock::now();
        for (buffer, tag, number) in &self.buffers {
            copy.copy_from_slice(buffer);
            let bound = Aad::from(BOUND);
            let opened =
                self.bare.open_in_place_separate_tag(nonce(*number), bound, *tag, &mut copy, 0..);
            black_box(opened.expect("what was sealed").len());
        }
        start.elapsed()
    }
}

fn nonce(number: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}

type Turn = fn(&mut Load) -> Duration;
/// Name, and the variants: the cipher alone, the cipher after a copy, the node.
const TURNS: [(&str, [Turn; 3]); 2] = [
    ("seal", [Load::seal_bare, Load::seal_copied, Load::seal_by_node]),
    ("open", [Load::open_bare, Load::open_copied, Load::open_by_node]),
];
const LENGTHS: [usize; 3] = [64, 1024, 4096];

fn per_datagram(criterion: &mut Criterion) {
    for cipher in [Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305] {
        for (name, turns) in TURNS {
            let mut group = criterion.benchmark_group(format!("{name} {}", cipher.name()));
            group.throughput(Throughput::Elements(1));
            for (who, turn) in ["bare", "copied", "node"].into_iter().zip(turns) {
                group.bench_with_input(BenchmarkId::new(who, 4096), &turn, |bencher, turn| {
                    let mut load = Load::new(cipher, 4096);
                    bencher.iter_custom(|datagrams| {
                        let turns = datagrams.div_ceil(CHUNK as u64);
                        let spent: Duration = (0..turns).map(|_| turn(&mut load)).sum();
                        spent.mul_f64(datagrams as f64 / (turns * CHUNK as u64) as f64)
                    });
                });
            }
            group.finish();
        }
    }
}

/// Quartiles and median, in ascending order.
fn quartiles(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| sorted[sorted.len() * quarter / 4])
}

fn in_turn(_criterion: &mut Criterion) {
    const ROUNDS: usize = 4000;
    println!("ns per datagram, median of {ROUNDS} rounds in turn; median ratio and its quartiles");
    for cipher in [Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305] {
        for len in LENGTHS {
            for (name, turns) in TURNS {
                let mut load = Load::new(cipher, len);
                let ns = |spent: Duration| spent.as_nanos() as f64 / CHUNK as f64;
                let rounds: Vec<[f64; 3]> =
                    (0..ROUNDS).map(|_| turns.map(|turn| ns(turn(&mut load)))).collect();
                let [bare, copied, node] =
                    [0, 1, 2].map(|who| quartiles(rounds.iter().map(|round| round[who]))[1]);
                let [low, ratio, high] = quartiles(rounds.iter().map(|round| round[2] / round[0]));
                let beyond_copy = quartiles(rounds.iter().map(|round| round[2] / round[1]))[1];
                println!(
                    "{:18} {len:5} B {name}: bare {bare:7.1}, copied {copied:7.1}, node \
                     {node:7.1}; node/bare {ratio:.3} ({low:.3} to {high:.3}), node/copied \
                     {beyond_copy:.3}",
                    cipher.name(),
                );
            }
        }
    }
}

criterion_group!(benches, in_turn, per_datagram);
criterion_main!(benches);
