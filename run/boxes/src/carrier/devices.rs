//! Links of devices that belong to the box's process, as DPDK's do: the thread that has a pair's
//! ports tells the guard of them, and sets them for it.

use super::follow::Side;
use super::guard::{GuardedPair, Manner};
use super::{Order, line};
use longhaul_port::{LinkState, Port};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

/// Time limit of a thread's answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// A device among the ports of a pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Device {
    pub side: Side,
    /// Its number within its side.
    pub port: usize,
}

impl Device {
    /// Its place among all ports of the pair: the first side has one.
    fn place(self) -> usize {
        self.side + self.port
    }
}

/// What the thread is asked.
enum Ask {
    /// To set the links of these devices, and answer with those that stay as they were, and why.
    Set { devices: Vec<Device>, to: LinkState, answer: SyncSender<Vec<(Device, String)>> },
    /// To tell the guard of all links from now on.
    Tell(UnixStream),
}

/// The devices of a pair, for other threads than that which has them.
pub struct Devices {
    asks: Sender<Ask>,
    /// Those whose links can be set.
    setting: Vec<Device>,
}

/// The devices of a pair, for the thread that has them.
pub struct Attendant {
    pair: usize,
    asks: Receiver<Ask>,
    guard: Option<UnixStream>,
    /// The devices with their links as last told.
    devices: Vec<(Device, Option<LinkState>)>,
}

/// The devices of pair number `pair`, if it has any.
pub fn devices(pair: usize, guarded: &GuardedPair) -> Option<(Devices, Attendant)> {
    let mut setting = Vec::new();
    for (side, ports) in guarded.sides.iter().enumerate() {
        for (port, guarded) in ports.iter().enumerate() {
            if guarded.as_ref().is_some_and(|of| matches!(of.manner, Manner::Device { .. })) {
                setting.push(Device { side, port });
            }
        }
    }
    if setting.is_empty() {
        return None;
    }
    let (sender, asks) = channel();
    let devices = setting.iter().map(|device| (*device, None)).collect();
    Some((Devices { asks: sender, setting }, Attendant { pair, asks, guard: None, devices }))
}

impl Devices {
    /// Brings all links up, from now on leaves alone those that cannot be set, and returns these
    /// with the reasons. `wake` makes the thread attend.
    pub fn bring_up(&mut self, wake: impl FnOnce()) -> Vec<(Device, String)> {
        let failed = self.ask(self.setting.clone(), LinkState::Up, wake);
        self.setting.retain(|device| !failed.iter().any(|(one, _)| one == device));
        failed
    }

    /// Sets the links of one side, or of both, and returns why some stay as they were.
    pub fn set(&self, of: Option<Side>, to: LinkState, wake: impl FnOnce()) -> Vec<String> {
        let these = self.setting.iter().filter(|device| of.is_none_or(|side| side == device.side));
        let failed = self.ask(these.copied().collect(), to, wake);
        failed.into_iter().map(|(_, error)| error).collect()
    }

    /// Has the guard at the other end of `stream` told of all links.
    pub fn tell(&self, stream: UnixStream, wake: impl FnOnce()) {
        // A thread that has died ends the box.
        if self.asks.send(Ask::Tell(stream)).is_ok() {
            wake();
        }
    }

    fn ask(
        &self,
        devices: Vec<Device>,
        to: LinkState,
        wake: impl FnOnce(),
    ) -> Vec<(Device, String)> {
        if devices.is_empty() {
            return Vec::new();
        }
        let (answer, answered) = sync_channel(1);
        let ask = Ask::Set { devices: devices.clone(), to, answer };
        if self.asks.send(ask).is_ok() {
            wake();
        }
        let silent = |device| (device, "its thread does not answer".to_string());
        let answer = answered.recv_timeout(ANSWER_WITHIN);
        answer.unwrap_or_else(|_| devices.into_iter().map(silent).collect())
    }
}

impl Attendant {
    /// Does what was asked, and tells the guard of links that have changed. `ports`: the pair's.
    pub fn attend(&mut self, ports: &mut [impl Port]) {
        while let Ok(ask) = self.asks.try_recv() {
            match ask {
                Ask::Set { devices, to, answer } => {
                    let set = |device: Device| {
                        let done = ports.get_mut(device.place())?.set_link(to);
                        Some((device, done.err()?.to_string()))
                    };
                    // Nobody may wait for it any more.
                    let _ = answer.send(devices.into_iter().filter_map(set).collect());
                }
                Ask::Tell(stream) => self.guard = Some(stream),
            }
        }
        let Some(guard) = &self.guard else { return };
        for (device, told) in &mut self.devices {
            let Some(port) = ports.get(device.place()) else { continue };
            let link = port.link_state();
            if *told != Some(link) && tell(guard, self.pair, *device, port).is_ok() {
                *told = Some(link);
            }
        }
    }
}

/// Tells the guard of a link, unless that would block.
fn tell(guard: &UnixStream, pair: usize, device: Device, port: &impl Port) -> io::Result<()> {
    let why_down = || {
        let name = port.capabilities().name;
        match port.last_disconnect() {
            Some(why) => format!("device {name}: {why}"),
            None => {
                format!("device {name} has no carrier: is the other end connected and up?")
            }
        }
    };
    let Device { side, port: number } = device;
    let why_down = (port.link_state() == LinkState::Down).then(why_down);
    let order = Order::Carrier { pair, side, port: number, why_down };
    // So short that the kernel takes all of it or nothing.
    let sent = send(guard, line(&order)?.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    match sent {
        // Elsewhere it is told that the guard has ended.
        Ok(_) | Err(Errno::PIPE) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::carrier::guard::GuardedPort;
    use longhaul_port::{NullPort, PortError, forward_port};
    use std::io::{BufRead, BufReader};
    use std::sync::mpsc::TryRecvError;
    use std::thread;

    /// A port whose link can be set, or cannot.
    struct WithLink {
        port: NullPort,
        link: LinkState,
        refuses: bool,
    }

    impl Port for WithLink {
        fn set_link(&mut self, to: LinkState) -> Result<(), PortError> {
            if self.refuses {
                let (port, reason) = ("test".to_string(), "it cannot".to_string());
                return Err(PortError::LinkStays { port, reason });
            }
            self.link = to;
            Ok(())
        }

        fn link_state(&self) -> LinkState {
            self.link
        }

        forward_port!(|self| self.port => receive, transmit_room, transmit, flush, arm, disarm);
        forward_port!(|self| self.port => descriptors, service, capabilities, counters);
    }

    fn port(refuses: bool) -> WithLink {
        WithLink { port: NullPort::new("test", 64), link: LinkState::Down, refuses }
    }

    fn device() -> Option<GuardedPort> {
        let manner = Manner::Device { follows: true };
        Some(GuardedPort { name: "test".to_string(), manner })
    }

    #[test]
    fn devices_are_set_and_told_of_by_the_thread_that_has_them() {
        let guarded = GuardedPair { sides: [vec![device()], vec![None, device()]], held: None };
        let (mut devices, mut attendant) = super::devices(7, &guarded).unwrap();
        let (ours, its) = UnixStream::pair().unwrap();
        let mut told = BufReader::new(its).lines();
        let (end, is_over) = channel::<()>();
        thread::scope(|scope| {
            // Dropped at the end, also if an assertion fails.
            let _end = end;
            scope.spawn(move || {
                let mut ports = [port(false), port(false), port(true)];
                while is_over.try_recv() == Err(TryRecvError::Empty) {
                    attendant.attend(&mut ports);
                    thread::yield_now();
                }
            });
            let failed = devices.bring_up(|| ());
            assert_eq!(failed[0].0, Device { side: 1, port: 1 });
            assert!(failed.len() == 1 && failed[0].1.ends_with("it cannot"), "{failed:?}");
            assert!(devices.set(None, LinkState::Down, || ()).is_empty());
            devices.tell(ours, || ());
            let mut told = || {
                let line = told.next().unwrap().unwrap();
                serde_json::from_str::<Order>(&line).unwrap()
            };
            let is_down = "device test has no carrier: is the other end connected and up?";
            for (side, port) in [(0, 0), (1, 1)] {
                let why_down = Some(is_down.to_string());
                assert_eq!(told(), Order::Carrier { pair: 7, side, port, why_down });
            }
            assert!(devices.set(Some(0), LinkState::Up, || ()).is_empty());
            assert_eq!(told(), Order::Carrier { pair: 7, side: 0, port: 0, why_down: None });
        });
        let failed = devices.set(Some(0), LinkState::Up, || ());
        assert_eq!(failed, ["its thread does not answer"]);
    }
}
