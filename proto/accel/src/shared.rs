//! State that all flows of an accelerator share: configuration, memory, counters and queues.

use crate::accelerator::LAN;
use crate::advice::Advices;
use crate::pairing::Looks;
use crate::shares::Shares;
use crate::store::Spare;
use crate::{Config, Counters, DropReason};
use longhaul_cc::dcqcn::Dcqcn;
use longhaul_node::{Frame, FrameBuf, FramePool, PassingQueue, Side};
use longhaul_units::{BitRate, Instant};

/// State that all flows share.
pub(crate) struct AccelShared {
    pub(crate) config: Config,
    pub(crate) pool: FramePool,
    pub(crate) counters: Counters,
    /// Memory used by the stores.
    pub(crate) shares: Shares,
    pub(crate) spare: Spare,
    /// No packet is acknowledged early, and no flow is added.
    pub(crate) draining: bool,
    /// DCQCN parameters of flows that receive CNPs.
    pub(crate) dcqcn: Dcqcn,
    pub(crate) to_lan: PassingQueue,
    pub(crate) to_wan: PassingQueue,
    pub(crate) looks: Looks,
    pub(crate) advices: Advices,
}

impl AccelShared {
    pub(crate) fn new(config: Config) -> Self {
        let queue = || PassingQueue::new(config.passthrough_delay, config.passthrough_bytes_max);
        AccelShared {
            pool: FramePool::new(),
            counters: Counters::default(),
            shares: Shares::new(config.seed),
            spare: Spare::default(),
            draining: false,
            dcqcn: dcqcn(&config),
            to_lan: queue(),
            to_wan: queue(),
            looks: Looks::default(),
            advices: Advices::default(),
            config,
        }
    }

    pub(crate) fn reconfigure(&mut self, config: Config) {
        self.dcqcn = dcqcn(&config);
        self.to_lan.reconfigure(config.passthrough_delay);
        self.to_wan.reconfigure(config.passthrough_delay);
        self.config = config;
    }

    /// Returns `false` and counts a drop if `frame` cannot be stored.
    #[inline]
    pub(crate) fn may_hold(&mut self, frame: &Frame<'_>) -> bool {
        let may = frame.may_be_kept();
        if !may {
            self.counters.drops.count(DropReason::Oversized);
        }
        may
    }

    /// Stores `frame` in a buffer if possible.
    #[inline]
    pub(crate) fn hold(&mut self, frame: &Frame<'_>) -> Option<FrameBuf> {
        self.may_hold(frame).then(|| self.pool.hold(frame))
    }

    /// Queues a frame that is not RoCEv2.
    pub(crate) fn pass_other(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        let Some(frame) = self.hold(frame) else { return };
        let queue = if side == LAN { &mut self.to_wan } else { &mut self.to_lan };
        self.counters.drops.add(DropReason::QueueFull, queue.push_other(now, frame));
    }

    /// Counts the frames that waited too long.
    pub(crate) fn count_late(&mut self) {
        for queue in [&mut self.to_lan, &mut self.to_wan] {
            let late = queue.take_late();
            self.counters.passed_marked += late.marked;
            self.counters.drops.add(DropReason::QueueDelay, late.dropped);
        }
    }

    /// Queues a RoCEv2 frame, as the functions below do.
    pub(crate) fn pass_to_wan(&mut self, frame: &Frame<'_>) {
        if let Some(frame) = self.hold(frame) {
            self.queue_to_wan(frame);
        }
    }

    pub(crate) fn queue_to_wan(&mut self, frame: FrameBuf) {
        if !self.to_wan.push_roce(frame) {
            self.counters.drops.count(DropReason::QueueFull);
        }
    }

    pub(crate) fn queue_to_lan(&mut self, frame: FrameBuf) {
        if !self.to_lan.push_roce(frame) {
            self.counters.drops.count(DropReason::QueueFull);
        }
    }

    /// Returns `false` if the frame was dropped.
    pub(crate) fn pass_to_lan(&mut self, frame: &Frame<'_>) -> bool {
        let Some(frame) = self.hold(frame) else { return false };
        let passed = self.to_lan.push_roce(frame);
        if !passed {
            self.counters.drops.count(DropReason::QueueFull);
        }
        passed
    }
}

/// DCQCN at the rate of the WAN.
fn dcqcn(config: &Config) -> Dcqcn {
    let rates = config.wan_pacing.rate().into_iter().chain(BitRate::from_gbps(100));
    match rates.flat_map(Dcqcn::nvidia).next() {
        Some(dcqcn) => dcqcn,
        None => unreachable!("100 Gbit/s are in its range"),
    }
}
