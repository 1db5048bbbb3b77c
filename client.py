''')
open(p,'w').write(s)
