from lib.study.run import main

raise SystemExit(main())
