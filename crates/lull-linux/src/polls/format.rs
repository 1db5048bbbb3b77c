//! What an event looks like in the ring buffer, read from the kernel's own description (`events/.../format`).

use super::error::PollsError;

/// An event's id and the places of its fields.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Format {
    pub id: u16,
    name: String,
    /// The name, the offset, and the size of each field.
    fields: Vec<(String, usize, usize)>,
}

impl Format {
    pub fn parse(text: &str) -> Result<Format, PollsError> {
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        let name = value("name:").unwrap_or("an event").to_owned();
        let id = value("ID:").and_then(|id| id.parse().ok());
        let id = id.ok_or_else(|| PollsError::Format(format!("the format of {name} gives no id")))?;
        Ok(Format { id, name, fields: text.lines().filter_map(field).collect() })
    }

    /// The offset of a field, which has to be `bytes` long.
    pub fn field(&self, name: &str, bytes: usize) -> Result<usize, PollsError> {
        let found = self.fields.iter().find(|field| field.0 == name && field.2 == bytes);
        let missing = || PollsError::Format(format!("the event {} has no field {name} of {bytes} bytes", self.name));
        found.map(|field| field.1).ok_or_else(missing)
    }
}

/// A line such as `field:int work; offset:20; size:4; signed:1;`.
pub(super) fn field(line: &str) -> Option<(String, usize, usize)> {
    let mut parts = line.trim().strip_prefix("field:")?.split(';').map(str::trim);
    let declaration = parts.next()?;
    let name = declaration.rsplit([' ', '*']).next()?.trim_end_matches("[]").to_owned();
    let mut number = |key: &str| parts.next()?.strip_prefix(key)?.parse().ok();
    Some((name, number("offset:")?, number("size:")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAPI_POLL: &str = "name: napi_poll\nID: 2291\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
        \tfield:struct napi_struct * napi;\toffset:8;\tsize:8;\tsigned:0;\n\
        \tfield:__data_loc char[] dev_name;\toffset:16;\tsize:4;\tsigned:0;\n\
        \tfield:int work;\toffset:20;\tsize:4;\tsigned:1;\n\nprint fmt: \"napi\", REC->napi\n";

    #[test]
    fn fields_are_found_by_name_and_size() {
        let format = Format::parse(NAPI_POLL).unwrap();
        assert_eq!(format.id, 2291);
        assert_eq!(format.field("napi", 8).unwrap(), 8);
        assert_eq!(format.field("dev_name", 4).unwrap(), 16);
        assert_eq!(format.field("work", 4).unwrap(), 20);
        let error = format.field("work", 8).unwrap_err().to_string();
        assert!(error.contains("napi_poll has no field work of 8 bytes"), "{error}");
        assert!(Format::parse("name: x\n").is_err());
    }
}
