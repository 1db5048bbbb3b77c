//! Items in a slab of slots, linked in one list from the most to the least recently used.
//!
//! The links are indices instead of pointers: a slot is 64 bytes, one cache line, and the list takes eight of them.

/// Stands for no slot, at the ends of the list.
pub(super) const NONE: u32 = u32::MAX;

/// One item. The key and the value share an allocation, key first.
#[derive(Debug)]
pub(super) struct Item {
    /// Key, then value.
    pub bytes: Vec<u8>,
    /// Unique among the versions of a key.
    pub cas: u64,
    /// The client's opaque flags.
    pub flags: u32,
    /// The unix second at which the item expires, or 0 if it never does.
    pub expires_s: u32,
    /// The unix second of the last store, with which a delayed `flush_all` is compared.
    pub stored_s: u32,
    /// Unix second of the last move to the front of the list.
    pub bumped_s: u32,
    prev: u32,
    next: u32,
    /// The number of bytes in `bytes` that are the key; at most 250.
    pub key_len: u8,
}

impl Item {
    pub fn key(&self) -> &[u8] {
        &self.bytes[..usize::from(self.key_len)]
    }

    pub fn value(&self) -> &[u8] {
        &self.bytes[usize::from(self.key_len)..]
    }

    pub fn expired(&self, now_s: u32) -> bool {
        self.expires_s != 0 && self.expires_s <= now_s
    }
}

/// The slots and the list.
#[derive(Debug)]
pub(super) struct Lru {
    slots: Vec<Item>,
    free: Vec<u32>,
    head: u32,
    tail: u32,
}

impl Lru {
    pub fn new() -> Lru {
        Lru { slots: Vec::new(), free: Vec::new(), head: NONE, tail: NONE }
    }

    #[inline]
    pub fn item(&self, slot: u32) -> &Item {
        &self.slots[slot as usize]
    }

    /// Returns the item in a slot that may have been freed.
    #[inline]
    pub fn get(&self, slot: u32) -> Option<&Item> {
        self.slots.get(slot as usize)
    }

    #[inline]
    pub fn item_mut(&mut self, slot: u32) -> &mut Item {
        &mut self.slots[slot as usize]
    }

    /// Returns the least recently used slot, or [`NONE`].
    pub fn oldest(&self) -> u32 {
        self.tail
    }

    /// Returns the slot that was used just before `slot`, from the front towards the back, or [`NONE`].
    pub fn older_than(&self, slot: u32) -> u32 {
        self.item(slot).next
    }

    /// Returns the most recently used slot, or [`NONE`].
    pub fn newest(&self) -> u32 {
        self.head
    }

    /// Puts an item at the front. Returns `None` if the slots are exhausted (4 billion).
    pub fn insert(&mut self, bytes: Vec<u8>, key_len: u8, now_s: u32) -> Option<u32> {
        let item = Item {
            bytes,
            cas: 0,
            flags: 0,
            expires_s: 0,
            stored_s: now_s,
            bumped_s: now_s,
            prev: NONE,
            next: NONE,
            key_len,
        };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = item;
                slot
            }
            None => {
                let slot = u32::try_from(self.slots.len()).ok().filter(|slot| *slot != NONE)?;
                self.slots.push(item);
                slot
            }
        };
        self.link_front(slot);
        Some(slot)
    }

    /// Moves a slot to the front.
    pub fn bump(&mut self, slot: u32, now_s: u32) {
        self.item_mut(slot).bumped_s = now_s;
        if self.head != slot {
            self.unlink(slot);
            self.link_front(slot);
        }
    }

    /// Frees a slot and its buffer.
    pub fn remove(&mut self, slot: u32) {
        self.unlink(slot);
        self.item_mut(slot).bytes = Vec::new();
        self.free.push(slot);
    }

    fn link_front(&mut self, slot: u32) {
        let old_head = self.head;
        let item = self.item_mut(slot);
        item.prev = NONE;
        item.next = old_head;
        match old_head {
            NONE => self.tail = slot,
            old_head => self.item_mut(old_head).prev = slot,
        }
        self.head = slot;
    }

    fn unlink(&mut self, slot: u32) {
        let (prev, next) = (self.item(slot).prev, self.item(slot).next);
        match prev {
            NONE => self.head = next,
            prev => self.item_mut(prev).next = next,
        }
        match next {
            NONE => self.tail = prev,
            next => self.item_mut(next).prev = prev,
        }
    }
}
